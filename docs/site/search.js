// Finds sections that contain every word. SECTIONS, which the build puts before this, has address, page, heading and text of each.
const MOST = 40;

const input = document.querySelector("input[type=search]");
const found = document.getElementById("found");
const article = document.querySelector("article");

function rank(words, [, page, heading, text]) {
  const head = `${page} ${heading}`.toLowerCase();
  const body = text.toLowerCase();
  let sum = 0;
  for (const word of words) {
    const inHead = head.includes(word);
    const inBody = body.split(word).length - 1;
    if (!inHead && !inBody) return 0;
    sum += (inHead ? 20 : 0) + Math.min(inBody, 10);
  }
  return sum;
}

// The part of the text around the first word, the words marked.
function extract(words, text) {
  const at = Math.max(0, text.toLowerCase().indexOf(words[0]) - 60);
  const line = document.createElement("p");
  const pattern = new RegExp(`(${words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|")})`, "i");
  text.slice(at, at + 240).split(pattern).forEach((part, i) => {
    const piece = document.createElement(i % 2 ? "mark" : "span");
    piece.textContent = part;
    line.append(piece);
  });
  return line;
}

function search() {
  const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
  found.hidden = !words.length;
  article.hidden = !!words.length;
  const best = SECTIONS.map((section) => [rank(words, section), section])
    .filter(([score]) => score)
    .sort(([a], [b]) => b - a)
    .slice(0, MOST);
  found.replaceChildren(
    ...best.map(([, [address, page, heading, text]]) => {
      const hit = document.createElement("div");
      const link = document.createElement("a");
      link.href = input.dataset.root + address;
      link.textContent = heading === page ? page : `${page}: ${heading}`;
      // The address may be on this page.
      link.onclick = () => {
        input.value = "";
        search();
      };
      hit.append(link, extract(words, text));
      return hit;
    }),
  );
  if (words.length && !best.length) found.textContent = "Nothing was found.";
}

input.addEventListener("input", search);
document.addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== input) {
    event.preventDefault();
    input.focus();
  } else if (event.key === "Escape") {
    input.value = "";
    search();
  }
});
