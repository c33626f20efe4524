// What bench/tests/test_report.py asks of the report in a browser.

// The exact figures of a table's rows, by the words of their first cells.
function numbers(selector, names) {
  const rows = {};
  for (const row of document.querySelector(selector).tBodies[0].rows)
    rows[[...row.cells].slice(0, names).map((c) => c.textContent).join(" | ")] =
      [...row.cells].map((c) => c.dataset.value === undefined ? null : Number(c.dataset.value));
  return rows;
}

// Blocks that lie over another, texts of plots that do or that are cut off.
function overlaps() {
  const found = [];
  const inside = (a, b) => Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1
    && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 1;
  const words = (e) => e.textContent.trim().slice(0, 30);
  const check = (elements, where) => {
    const boxes = elements.map((e) => [e, e.getBoundingClientRect()])
      .filter(([, box]) => box.width > 0 && box.height > 0);
    boxes.forEach(([a, first], i) => boxes.slice(i + 1).forEach(([b, second]) => {
      if (inside(first, second)) found.push(`${where}: ${words(a)} / ${words(b)}`);
    }));
  };
  const parents = "body, header, main, section, figure, ul, dl, dl div, thead, tbody, tr, li";
  for (const parent of document.querySelectorAll(parents))
    check([...parent.children], parent.tagName);
  for (const svg of document.querySelectorAll("svg")) {
    check([...svg.querySelectorAll("text")], svg.closest("figure").id);
    const frame = svg.getBoundingClientRect();
    if (!frame.width) continue;
    for (const text of svg.querySelectorAll("text")) {
      const box = text.getBoundingClientRect();
      if (box.left < frame.left - 2 || box.right > frame.right + 2 || box.bottom > frame.bottom + 2)
        found.push(`${svg.closest("figure").id}: ${text.textContent} is cut off`);
    }
  }
  return found;
}

// Of everything that has words: its colour, that behind it, and what it is.
function colours() {
  const worded = "h1, h2 a, p, dt, dd, li, th, td, caption, a, summary, text";
  return [...document.querySelectorAll(worded)]
    .filter((e) => e.getBoundingClientRect().width > 0 && e.textContent.trim())
    .map((e) => {
      let behind = e;
      const ground = () => getComputedStyle(behind).backgroundColor;
      while (ground() === "rgba(0, 0, 0, 0)" && behind.parentElement)
        behind = behind.parentElement;
      const style = getComputedStyle(e);
      return [e.tagName === "text" ? style.fill : style.color,
        ground(), e.tagName + " " + e.className];
    });
}

// The first cells of a table's rows that are shown while these words are searched for.
function searched(selector, words) {
  const search = document.querySelector("#search");
  search.value = words;
  search.dispatchEvent(new Event("input"));
  return [...document.querySelector(selector).tBodies[0].rows]
    .filter((row) => row.getBoundingClientRect().height > 0)
    .map((row) => row.cells[0].textContent);
}

// A column of a table as it stands after its heading was clicked.
function sorted(selector, column) {
  const table = document.querySelector(selector);
  table.closest("details").open = true;
  table.tHead.rows[0].cells[column].querySelector("button").click();
  return [...table.tBodies[0].rows].map((row) => Number(row.cells[column].dataset.value));
}

// How the first column of a table is placed.
function firstColumn(selector) {
  return getComputedStyle(document.querySelector(selector).tBodies[0].rows[0].cells[0]).position;
}
