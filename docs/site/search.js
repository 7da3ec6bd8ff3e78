// Finds sections that contain every word. SECTIONS, which the build puts before this, has address, page, heading and text of each.
const MOST = 40;
// So that a long page leaves room for others.
const MOST_OF_A_PAGE = 4;
// Lists of every setting, series and argument, then pages for developers and records of measurements: behind the pages that explain something.
const REFERENCE = /^docs\/(command-line|configuration|metrics)\b/;
const BEHIND = /^(ARCHITECTURE|CHANGELOG|CONTRIBUTING|clients\/\w+\/CHANGELOG|docs\/(benchmarks|decisions|style)|fuzz|rig|web)\b/;

const input = document.querySelector("input[type=search]");
const found = document.getElementById("found");
const article = document.querySelector("article");

// The beginning of a word, without its ending: "sampling" finds "sample" and "weir_samples_dropped_total", "tag" does not find "advantage".
function finder(word) {
  const stem = word.replace(/(?<=[a-z]{3})(ing|ed|es|(?<!s)s|e)$/, "");
  const escaped = stem.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  return new RegExp(/^[a-z0-9]/.test(word) ? `(?<![a-z0-9])${escaped}` : escaped, "gi");
}

function rank(words, [address, page, heading, text]) {
  let sum = 0;
  for (const found of words) {
    const inPage = page.search(found) >= 0;
    const inHeading = heading.search(found) >= 0;
    const inText = (text.match(found) ?? []).length;
    if (!inPage && !inHeading && !inText) return 0;
    sum += (inPage ? 20 : 0) + (inHeading ? 20 : 0) + Math.min(inText, 10);
  }
  return REFERENCE.test(address) ? sum / 2 : BEHIND.test(address) ? sum / 4 : sum;
}

function finders(text) {
  return text.toLowerCase().split(/\s+/).filter(Boolean).map(finder);
}

// The sections that contain every word of the text, best first.
function hits(text) {
  const words = finders(text);
  const ranked = SECTIONS.map((section) => [words.length ? rank(words, section) : 0, section])
    .filter(([score]) => score)
    .sort(([a], [b]) => b - a)
    .map(([, section]) => section);
  const ofPage = {};
  return ranked
    .filter(([address]) => {
      const page = address.replace(/#.*/, "");
      ofPage[page] = (ofPage[page] ?? 0) + 1;
      return ofPage[page] <= MOST_OF_A_PAGE;
    })
    .slice(0, MOST);
}

// Whole words of the text around the first word that was found, with all of them marked.
function extract(words, text) {
  const from = text.lastIndexOf(" ", Math.max(0, text.search(words[0]) - 60)) + 1;
  const to = text.length - from > 240 ? text.lastIndexOf(" ", from + 240) : text.length;
  const pattern = new RegExp(`((?:${words.map((found) => found.source).join("|")})\\w*)`, "i");
  const line = document.createElement("p");
  line.append(from ? "… " : "");
  text.slice(from, to).split(pattern).forEach((part, i) => {
    const piece = document.createElement(i % 2 ? "mark" : "span");
    piece.textContent = part;
    line.append(piece);
  });
  line.append(to < text.length ? " …" : "");
  return line;
}

function search() {
  const words = finders(input.value);
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
