// Finds sections that contain every word. SECTIONS, which the build puts before this, has address, page, heading and text of each.
const MOST = 40;
// Pages for developers and records of measurements: below the pages that say how to use weir.
const BEHIND = /^(CHANGELOG|CONTRIBUTING|docs\/(benchmarks|decisions|style)|fuzz|rig|web)\b/;

const input = document.querySelector("input[type=search]");
const found = document.getElementById("found");
const article = document.querySelector("article");

// A word or its beginning: "tag" is in "tags" and in "weir_tag_lists", not in "advantage".
function finder(word) {
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(/^[a-z0-9]/.test(word) ? `(?<![a-z0-9])${escaped}` : escaped, "gi");
}

function rank(finders, [address, page, heading, text]) {
  let sum = 0;
  for (const found of finders) {
    const inPage = page.search(found) >= 0;
    const inHeading = heading.search(found) >= 0;
    const inText = (text.match(found) ?? []).length;
    if (!inPage && !inHeading && !inText) return 0;
    sum += (inPage ? 20 : 0) + (inHeading ? 20 : 0) + Math.min(inText, 10);
  }
  return BEHIND.test(address) ? sum / 4 : sum;
}

// The sections that contain every word of the text, best first.
function hits(text) {
  const finders = text.split(/\s+/).filter(Boolean).map((word) => finder(word.toLowerCase()));
  return SECTIONS.map((section) => [finders.length ? rank(finders, section) : 0, section])
    .filter(([score]) => score)
    .sort(([a], [b]) => b - a)
    .slice(0, MOST)
    .map(([, section]) => section);
}

// The part of the text around the first word, with all words marked.
function extract(words, text) {
  const at = Math.max(0, text.search(finder(words[0])) - 60);
  const line = document.createElement("p");
  const pattern = new RegExp(`(${words.map((word) => finder(word).source).join("|")})`, "i");
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
  const best = hits(input.value);
  found.replaceChildren(
    ...best.map(([address, page, heading, text]) => {
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
