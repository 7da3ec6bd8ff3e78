// Pictures of every view of the page, in both themes at 360, 768 and 1280 pixels, of a real agent that receives the traffic of a shop; and
// of the views of an agent that has received nothing yet.
//
//   WEIR_BIN=../target/release/weir node test/pictures.mjs [DIRECTORY, instead of build/pictures] [SECONDS OF TRAFFIC BEFORE, instead of 90]
//
// `readme-light.png` and `readme-dark.png` are those of the repository's README, as docs/images/metric-*.png.

import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync, mkdirSync, mkdtempSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const WEIR = resolve(process.env.WEIR_BIN ?? "../target/release/weir");
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const INTO = resolve(process.argv[2] ?? "build/pictures");
const SECONDS = Number(process.argv[3] ?? 90);
const WIDTHS = [360, 768, 1280];
const VIEWS = {
  overview: "overview",
  metrics: "metrics",
  "metrics-kind": "metrics?kind=histogram%2Cdistribution&sort=samples",
  chart: "metrics?metric=http.request.duration&fn=p95&by=endpoint",
  ratio: "metrics?metric=http.errors&metric.b=http.requests&by=service&formula=a%2Fb&compare=60",
  timer: "metrics?metric=http.render&fn=heatmap",
  "timer-linear": "metrics?metric=http.render&fn=heatmap&scale=linear&compare=60",
  cardinality: "cardinality",
  tail: "tail?match=http",
  rejected: "tail?verdict=rejected",
  explain: "explain?line=http.requests%3A1%7Cc%7C%23env%3Aprod%2Cservice%3Acart",
  outputs: "outputs",
  help: "help",
};

/** Of an agent without metrics. */
const EMPTY = ["overview", "metrics", "cardinality", "tail", "outputs", "metrics?metric=no.such.metric"];

mkdirSync(INTO, { recursive: true });
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

const folder = mkdtempSync(join(tmpdir(), "weir-pictures-"));
const udp = await freePort();
const admin = await freePort();
const args = ["run", "--udp", `127.0.0.1:${udp}`, "--admin", `127.0.0.1:${admin}`, "--bucket-width", "1s"];
const agent = spawn(WEIR, args, {
  stdio: ["ignore", "ignore", "inherit"],
  cwd: folder,
  // An output whose receiver does not answer: its losses are in the pictures too.
  env: { PATH: process.env.PATH, WEIR_OUTPUTS_GRAPHITE_ADDRESS: `tcp://127.0.0.1:${await freePort()}` },
});
while (!(await fetch(`http://127.0.0.1:${admin}/ready`).catch(() => ({}))).ok) await sleep(50);

const socket = createSocket("udp4");
const send = (lines) => socket.send(lines.join("\n"), udp, "127.0.0.1");
const ENDPOINTS = [
  ["shop", "/cart"],
  ["shop", "/product"],
  ["pay", "/checkout"],
  ["find", "/search"],
];
let wave = 0;
/** A twentieth of a second in a shop: four endpoints, each with a wave of its own. */
function traffic() {
  wave += 1;
  for (const [at, [service, endpoint]] of ENDPOINTS.entries()) {
    const tags = `env:prod,service:${service},endpoint:${endpoint}`;
    const base = 30 + 25 * at + (12 + 4 * at) * Math.sin(wave / (110 + 37 * at));
    const lines = [];
    for (let request = 0; request < 3 + at; request += 1) {
      const noise = ((wave * 7919 + request * 104_729 + at * 31) % 101) / 101;
      const time = (base * (0.8 + 0.3 * noise + (noise > 0.97 ? 1.5 : 0))).toFixed(1);
      const isError = (wave * 31 + request * 17 + at * 7) % 97 < 2 + at + 2 * Math.sin(wave / 200);
      lines.push(`http.requests:1|c|#${tags},status:${isError ? 500 : 200}`);
      if (isError) lines.push(`http.errors:1|c|#${tags}`);
      lines.push(
        `http.request.duration:${time}|d|#${tags}`,
        `http.render:${(time / 3).toFixed(1)}|ms|#${tags}`,
      );
    }
    lines.push(
      `users.unique:user-${(wave * 13 + at) % 4000}|s`,
      `payload.bytes:${1000 + 37 * (wave % 90)}|h`,
    );
    send(lines);
  }
  send([
    `queue.depth:${Math.round(20 + 15 * Math.sin(wave / 80))}|g|#queue:mail`,
    `users.online:${300 + (wave % 40)}|g`,
  ]);
  send([`session.started:1|c|#session:${wave % 700}`]);
  if (wave % 40 === 0) send(["broken.metric:abc|c|#env:prod", "no_type:3"]);
}
const browser = await chromium.launch({
  executablePath: BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  env: { ...process.env, TMPDIR: folder },
});
/** One picture of each view. A part of the page that is wider than the window is said. */
async function take(page, views, name) {
  for (const [view, address] of Object.entries(views)) {
    await page.goto(`http://127.0.0.1:${admin}/#/${address}`);
    await page.locator(".state.good").waitFor();
    await sleep(address.startsWith("tail") ? 3000 : 1200);
    if (address === "cardinality" && (await page.locator("tbody button").count()) > 0)
      await page.locator("tbody button >> nth=0").click();
    await page.screenshot({ path: join(INTO, `${view}-${name}.png`), fullPage: true });
    const wide = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
    if (wide > 0) console.log(`${view}-${name}: ${wide} pixels are beyond the window`);
  }
}

let sending;
try {
  for (const colorScheme of ["light", "dark"]) {
    const context = await browser.newContext({ viewport: { width: 768, height: 800 }, colorScheme });
    const views = EMPTY.map((address, at) => [`empty-${address.split("?")[0]}-${at}`, address]);
    await take(await context.newPage(), Object.fromEntries(views), `768-${colorScheme}`);
    await context.close();
  }
  sending = setInterval(traffic, 50);
  await sleep(SECONDS * 1000);
  for (const colorScheme of ["light", "dark"]) {
    for (const width of WIDTHS) {
      const context = await browser.newContext({ viewport: { width, height: 800 }, colorScheme });
      await take(await context.newPage(), VIEWS, `${width}-${colorScheme}`);
      await context.close();
    }
    const context = await browser.newContext({ viewport: { width: 1100, height: 720 }, colorScheme });
    const page = await context.newPage();
    await page.goto(`http://127.0.0.1:${admin}/#/${VIEWS.chart}`);
    await page.locator(".legend tbody tr >> nth=3").waitFor();
    const chart = await page.locator(".chart .u-over").boundingBox();
    await page.mouse.move(chart.x + chart.width * 0.7, chart.y + chart.height * 0.4);
    await sleep(300);
    await page.screenshot({ path: join(INTO, `readme-${colorScheme}.png`) });
    await context.close();
  }
} finally {
  clearInterval(sending);
  socket.close();
  agent.kill("SIGTERM");
  await browser.close();
  rmSync(folder, { recursive: true, force: true });
}
