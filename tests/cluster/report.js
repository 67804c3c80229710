// Under the pointer: the second, and who led then. Without it the page says the same, in its titles.
const now = document.getElementById("now");
for (const svg of document.querySelectorAll("svg[data-length]")) {
  const { length, left, right, tenures } = svg.dataset;
  const spans = tenures.split(";").filter(Boolean).map((one) => one.split(","));
  const cross = document.createElementNS("http://www.w3.org/2000/svg", "line");
  cross.setAttribute("class", "cross");
  cross.setAttribute("y1", 0);
  cross.setAttribute("y2", svg.viewBox.baseVal.height - 26);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const x = ((event.clientX - box.left) * svg.viewBox.baseVal.width) / box.width;
    if (x < left || x > right) return hide();
    const at = ((x - left) * length) / (right - left);
    const leading = spans.filter(([from, to]) => at >= from && at <= to);
    const names = leading.map(([, , holder, token]) => `${holder}, token ${token}`);
    cross.setAttribute("x1", x);
    cross.setAttribute("x2", x);
    svg.append(cross);
    now.textContent = `${at.toFixed(2)} s: ${names.join(" AND ") || "nobody leads"}`;
    now.style.display = "block";
    now.style.left = `${Math.min(event.clientX + 14, innerWidth - now.offsetWidth - 8)}px`;
    now.style.top = `${event.clientY + 16}px`;
  });
  const hide = () => {
    cross.remove();
    now.style.display = "none";
  };
  svg.addEventListener("pointerleave", hide);
}
