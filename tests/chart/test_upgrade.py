"""The commands of the chart's README on a real API server: install, upgrade with changed CRDs."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.chart.conftest import CHART

NEW = "A sentence that the version before did not have."


def shown(section: str) -> str:
    """The first block of commands of a section; without --wait: there are no machines here."""
    text = (CHART / "README.md").read_text().partition(f"\n## {section}\n")[2]
    found = re.search(r"```sh\n(.*?)```", text, re.DOTALL)
    assert found is not None, section
    return found[1].replace(" --wait", "")


def test_crds_are_brought_up_to_date_by_the_command_of_the_readme(
    helm_program: str, tmp_path: Path
) -> None:
    """Helm makes them and never changes them; their fields stay Helm's until they are forced."""
    from control_plane import ControlPlane

    with ControlPlane(tmp_path / "plane") as plane:
        programs = f"{Path(helm_program).parent}:{Path(plane.kubectl).parent}"
        environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(plane.kubeconfig),
            "HOME": str(tmp_path),
        }

        def run(script: str) -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                ["sh", "-e", "-c", script],
                cwd=tmp_path,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
                timeout=120,
            )

        (tmp_path / "charts").mkdir()
        copy = shutil.copytree(CHART, tmp_path / "charts" / "leasekeeper")
        place = "--namespace leasekeeper --create-namespace"
        done = run(f"helm install leasekeeper charts/leasekeeper {place}")
        assert done.returncode == 0, done.stderr

        crd = copy / "crds" / "leasekeeper.dev_distributedlocks.yaml"
        text = crd.read_text()
        crd.write_text(re.sub(r"description: .*", f"description: {NEW}", text, count=1))
        assert crd.read_text() != text
        look = "kubectl get crd distributedlocks.leasekeeper.dev -o yaml"
        upgrade = shown("Upgrade")
        assert NEW not in run(look).stdout
        helm_only = "\n".join(line for line in upgrade.splitlines() if line.startswith("helm"))
        assert run(helm_only).returncode == 0
        assert NEW not in run(look).stdout, "Helm has learnt to upgrade CRDs: shorten the README"
        gentle = run(upgrade.replace(" --force-conflicts", ""))
        assert "conflict" in gentle.stderr
        done = run(upgrade)
        assert done.returncode == 0, done.stderr
        assert NEW in run(look).stdout
