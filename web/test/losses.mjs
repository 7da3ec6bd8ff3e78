// The losses on the pages of these agents, as people see them: a list of texts for each, as JSON.
//
//   node test/losses.mjs HOST:PORT...

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!BROWSER) throw new Error("no Chromium: make deps installs it");

/** That of the tests in Rust, which start this script. */
const PATIENCE = 90_000;

const folder = mkdtempSync(join(tmpdir(), "weir-losses-"));
const browser = await chromium.launch({
  timeout: PATIENCE,
  executablePath: BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  env: { ...process.env, TMPDIR: folder },
});
try {
  const texts = [];
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  const open = new Set();
  page.on("request", (request) => open.add(request));
  page.on("requestfinished", (request) => open.delete(request));
  page.on("requestfailed", (request) => open.delete(request));
  for (const admin of process.argv.slice(2)) {
    const losses = page.locator("section[aria-label=losses] li");
    try {
      await page.goto(`http://${admin}/#/overview`);
      await losses.first().waitFor({ state: "attached" });
    } catch (error) {
      const urls = [...open].map((request) => request.url());
      const text = await page.locator("body").innerText({ timeout: 1_000 }).catch(String);
      throw new Error(`${admin}: ${error.message}\nnot answered: ${urls.join(" ")}\nthe page: ${text}`);
    }
    texts.push(await losses.allTextContents());
  }
  process.stdout.write(JSON.stringify(texts));
} finally {
  await browser.close();
  rmSync(folder, { recursive: true, force: true });
}
