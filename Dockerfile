# Two images from one file:
#   sidecar    the sidecar of users' pods; also the node agent (`leasekeeper node-agent`)
#   operator   the operator and its webhook
# Both run as any uid with a read-only root, and hold no compiler and no pip.

# Debian splits Python: `python3-minimal` lacks asyncio and json, `python3` brings more than is used
# here. The interpreter and the standard library are these two packages. Their bytecode is compiled
# by a third one that is left out, so it is done here: a container with a read-only root would
# otherwise compile what it imports at every start. Unchecked, because nothing in an image changes.
FROM debian:trixie-slim AS python
RUN apt-get update \
 && apt-get install -y --no-install-recommends python3.13-minimal libpython3.13-stdlib \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt/* /var/log/*.log \
 && python3.13 -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.13 \
 && echo 'leasekeeper:x:65532:65532:libraries ask for a name:/nonexistent:/usr/sbin/nologin' >> /etc/passwd \
 && echo 'leasekeeper:x:65532:' >> /etc/group
ENV PATH=/opt/leasekeeper/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1

FROM python AS tools
RUN apt-get update && apt-get install -y --no-install-recommends python3.13-venv
WORKDIR /src
COPY constraints.txt ./
# The constraints stand in the environment, so that they bind the build's own requirements as well.
ENV PIP_CONSTRAINT=/src/constraints.txt \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ONLY_BINARY=:all:
RUN python3.13 -m venv /tools \
 && /tools/bin/pip install hatchling \
 && python3.13 -m venv --without-pip /opt/leasekeeper

FROM tools AS wheel
COPY pyproject.toml README.md LICENSE ./
COPY leasekeeper leasekeeper
COPY sidecar sidecar
COPY operator operator
RUN PIP_ONLY_BINARY= /tools/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheel .

# What a stage below installs first is read from pyproject.toml alone: a change of our own code
# leaves the layer of its dependencies as it is.
FROM tools AS requirements
COPY pyproject.toml ./
RUN /tools/bin/python -c "import pathlib, tomllib; \
project = tomllib.load(open('pyproject.toml', 'rb'))['project']; \
[pathlib.Path(f'{extra}.txt').write_text('\n'.join(project['dependencies'] + packages)) \
 for extra, packages in project['optional-dependencies'].items()]"

# `grep` finds the packages that have no line in the constraints, and finding one fails the build.
# STORES: the extras of further stores, as in `--build-arg STORES="postgresql zookeeper"`.
FROM requirements AS sidecar-build
ARG STORES=""
# pure-sasl (of kazoo) is published as source only; it is plain Python.
RUN /tools/bin/pip --python /opt/leasekeeper/bin/python install --no-compile --no-binary pure-sasl \
      $(printf -- '-r %s.txt ' sidecar $STORES) \
 && ! /tools/bin/pip --python /opt/leasekeeper/bin/python freeze | grep -vxiFf constraints.txt
COPY --from=wheel /wheel /wheel
RUN /tools/bin/pip --python /opt/leasekeeper/bin/python install --no-compile --no-deps /wheel/*.whl \
 && python3.13 -m compileall -q --invalidation-mode unchecked-hash /opt/leasekeeper

FROM requirements AS operator-build
RUN /tools/bin/pip --python /opt/leasekeeper/bin/python install --no-compile -r operator.txt \
 && ! /tools/bin/pip --python /opt/leasekeeper/bin/python freeze | grep -vxiFf constraints.txt
COPY --from=wheel /wheel /wheel
# The Kubernetes client has a module for each kind, 60 MB of bytecode, and loads the two or three
# that are used when they are used: those compile in milliseconds.
RUN /tools/bin/pip --python /opt/leasekeeper/bin/python install --no-compile --no-deps /wheel/*.whl \
 && python3.13 -m compileall -q --invalidation-mode unchecked-hash \
      -x '/kubernetes/.*/(api|models)/' /opt/leasekeeper

FROM python AS sidecar
COPY --from=sidecar-build /opt/leasekeeper /opt/leasekeeper
USER 65532:65532
ENTRYPOINT ["leasekeeper-sidecar"]

FROM python AS operator
COPY --from=operator-build /opt/leasekeeper /opt/leasekeeper
USER 65532:65532
ENTRYPOINT ["leasekeeper-operator"]
