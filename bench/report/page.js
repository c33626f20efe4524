// A column's heading sorts its table: by the exact figures where there are some, else by text.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  [...table.tHead.rows[0].cells].forEach((heading, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const falling = heading.getAttribute("aria-sort") === "ascending";
      for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const sign = falling ? -1 : 1;
      const key = (row) => {
        const cell = row.cells[column];
        return cell.dataset.value === undefined ? cell.textContent : Number(cell.dataset.value);
      };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1; // figures first
        return sign * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// What is searched for stays in the tables; long ones are opened while there is a search.
const search = document.querySelector("#search");
search.addEventListener("input", () => {
  const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of document.querySelectorAll("tbody tr")) {
    const text = row.textContent.toLowerCase();
    row.hidden = !words.every((word) => text.includes(word));
  }
  for (const details of document.querySelectorAll("details")) details.open = words.length > 0;
});
