// The losses on the pages of these agents, as people see them: a list of texts for each, as JSON.
//
//   node test/losses.mjs HOST:PORT...

import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { chromium } from "playwright-core";

const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
if (!BROWSER) throw new Error("no Chromium: make deps installs it");

const folder = mkdtempSync(join(tmpdir(), "weir-losses-"));
const browser = await chromium.launch({
  executablePath: BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  env: { ...process.env, TMPDIR: folder },
});
try {
  const texts = [];
  const page = await browser.newPage();
  for (const admin of process.argv.slice(2)) {
    await page.goto(`http://${admin}/#/overview`);
    const losses = page.locator("section[aria-label=losses] li");
    await losses
      .first()
      .waitFor({ state: "attached", timeout: 60_000 })
      .catch(async (error) => {
        throw new Error(`${admin}: ${error.message}: ${await page.locator("body").innerText()}`);
      });
    texts.push(await losses.allTextContents());
  }
  process.stdout.write(JSON.stringify(texts));
} finally {
  await browser.close();
  rmSync(folder, { recursive: true, force: true });
}
