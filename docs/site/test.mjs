// Searches the built site for words that a user would type, and reads its navigation: `node docs/site/test.mjs DIRECTORY`. The expected page
// is among the first three.
import assert from "node:assert";
import { readFileSync } from "node:fs";
import vm from "node:vm";

const EXPECTED = {
  prometheus: "docs/outputs/prometheus.html",
  sampling: "docs/protocol.html",
  lost: "docs/troubleshooting.html",
  "lost metric": "docs/troubleshooting.html",
  "rename metric": "docs/rules.html",
  upgrade: "docs/howto/upgrade.html",
  "tag limit": "docs/limits.html",
  weir_output_lag: "docs/metrics.html",
  "--admin": "docs/command-line.html",
};

const element = () => ({ value: "", dataset: { root: "" }, addEventListener() {} });
const page = vm.createContext({ document: { querySelector: element, getElementById: element, addEventListener() {} } });
vm.runInContext(readFileSync(`${process.argv[2]}/search.js`, "utf8"), page);
for (const [text, expected] of Object.entries(EXPECTED)) {
  const found = page.hits(text).map(([address]) => address.replace(/#.*/, ""));
  const best = [...new Set(found)].slice(0, 3);
  assert(best.includes(expected), `${text}: ${expected} is not among ${best.join(", ")}`);
}
assert.equal(page.hits("nonsense-that-no-page-has").length, 0);
assert.equal(page.hits("").length, 0);
const tutorial = readFileSync(`${process.argv[2]}/docs/tutorial.html`, "utf8");
const groups = [...tutorial.matchAll(/<summary>(.*?)<\/summary>/gs)].map(([, title]) => title);
assert.deepEqual(groups, ["Tutorial", "How to", "Reference", "Explanation"]);
console.log(`${Object.keys(EXPECTED).length} searches find their page`);
