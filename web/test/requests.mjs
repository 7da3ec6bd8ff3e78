// The cost of an open page for the agent: requests and bytes of each view in a minute, and nothing while the tab is hidden. Each costs the
// agent CPU time beside its work, so a view that asks for more fails here.
//
// And what the first chart costs: its script has a budget, and with `hold` its time too, on a machine with nothing else to do.
//
//   WEIR_BIN=../target/debug/weir node test/requests.mjs [SECONDS, instead of 20] [hold]

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync, mkdtempSync, rmSync } from "node:fs";
import { createServer, request } from "node:http";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const WEIR = resolve(process.env.WEIR_BIN ?? "../target/debug/weir");
const HOST = `127.${1 + (process.pid % 254)}.7.2`;
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const SECONDS = Number(process.argv[2] ?? 20);
const HOLDS_TIME = process.argv[3] === "hold";
const PATIENCE = 60_000;
/** Compressed bytes of all scripts, and milliseconds from the address to a chart with its lines. */
const SCRIPT_MAX = 60_000;
const FIRST_CHART_MAX = 1500;
const LIVE = "/api/v1/live";
/** Seconds that a stream leaves out are fetched from it. */
const BOOKS = "/api/v1/books";
/** Requests and KiB in a minute, of buckets of one second: with longer ones lists and charts are asked for less. */
const MAY = {
  overview: { requests: 8, kib: 200 },
  metrics: { requests: 13, kib: 40 },
  "metrics?metric=http.requests&by=service": { requests: 75, kib: 120 },
  cardinality: { requests: 13, kib: 40 },
  // A hundred messages a second at most.
  tail: { requests: 0, kib: 2000 },
  explain: { requests: 0, kib: 10 },
  outputs: { requests: 13, kib: 250 },
  help: { requests: 0, kib: 10 },
};

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
async function until(what, holds) {
  const deadline = Date.now() + PATIENCE;
  while (!(await holds().catch(() => false))) {
    if (Date.now() > deadline) throw new Error(`in vain waited until ${what}`);
    await sleep(50);
  }
}

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, HOST, done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

const folder = mkdtempSync(join(tmpdir(), "weir-requests-"));
const udp = await freePort();
const admin = await freePort();
const args = ["run", "--udp", `${HOST}:${udp}`, "--admin", `${HOST}:${admin}`, "--bucket-width", "1s"];
const agent = spawn(WEIR, args, {
  stdio: ["ignore", "ignore", "inherit"],
  cwd: folder,
  env: { PATH: process.env.PATH, WEIR_OUTPUTS_FILE_PATH: join(folder, "points") },
});
const ended = new Promise((done) => agent.on("exit", (code, signal) => done(code ?? signal)));
const early = ended.then((how) => Promise.reject(new Error(`${WEIR} ended before it was ready: ${how}`)));
await Promise.race([
  early,
  until("the agent is ready", async () => (await fetch(`http://${HOST}:${admin}/ready`)).ok),
]);

const socket = createSocket("udp4");
let round = 0;
const sending = setInterval(() => {
  round += 1;
  const lines = ["shop", "pay", "find"].flatMap((service) => [
    `http.requests:1|c|#env:prod,service:${service},status:${200 + (round % 3)}`,
    `http.request.duration:${20 + ((round * 7) % 90)}|d|#env:prod,service:${service}`,
  ]);
  socket.send(lines.join("\n"), udp, HOST);
}, 20);

/** Counts the flushes in a stream of events, and its gaps: seconds that it left out. */
function follow(stream, counts) {
  let text = "";
  let newest;
  stream.on("data", (piece) => {
    text += piece;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (/^event: flush$/m.test(event)) counts.flushes += 1;
      const books = /^event: books\ndata: (.*)$/m.exec(event);
      if (!books) continue;
      const time = JSON.parse(books[1]).times[0];
      if (time > newest + 1) counts.gaps += 1;
      newest = time;
    }
  });
}

/** Passes requests on to the agent, and counts them and the bytes of their answers. */
async function counter() {
  const counts = { requests: 0, bytes: 0, paths: {}, open: 0, flushes: 0, gaps: 0, books: 0 };
  const server = createServer((from, to) => {
    counts.requests += 1;
    const path = from.url.split("?")[0];
    counts.paths[path] = (counts.paths[path] ?? 0) + 1;
    counts.open += 1;
    const headers = { ...from.headers, host: `${HOST}:${admin}` };
    const passed = request({ host: HOST, port: admin, path: from.url, headers }, (answer) => {
      to.writeHead(answer.statusCode, answer.headers);
      answer.on("data", (piece) => {
        counts.bytes += piece.length;
        if (path === BOOKS) counts.books += piece.length;
      });
      if (path === LIVE) follow(answer, counts);
      answer.pipe(to);
    });
    passed.on("error", () => to.destroy());
    passed.end();
    to.on("close", () => {
      counts.open -= 1;
      passed.destroy();
    });
  });
  await new Promise((done) => server.listen(0, HOST, done));
  return { counts, server, port: server.address().port };
}

/** In a browser that knows nothing of the page. */
async function newPage() {
  const context = await browser.newContext();
  context.setDefaultTimeout(PATIENCE);
  return context.newPage();
}

async function firstChart() {
  const page = await newPage();
  await page.goto(`http://${HOST}:${admin}/#/metrics?metric=http.requests&by=service`);
  await page.locator(".legend tbody tr >> nth=2").waitFor();
  await page.locator(".chart canvas").waitFor();
  const cost = await page.evaluate(() => ({
    // Since the address was given.
    time: performance.now(),
    script: performance
      .getEntriesByType("resource")
      .filter((entry) => entry.initiatorType === "script" || entry.name.endsWith(".js"))
      .reduce((sum, entry) => sum + entry.encodedBodySize, 0),
  }));
  await page.context().close();
  return cost;
}

const browser = await chromium.launch({
  timeout: PATIENCE,
  executablePath: BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  env: { ...process.env, TMPDIR: folder },
});
const servers = [];
try {
  await until("there is a metric", async () => {
    const answer = await fetch(`http://${HOST}:${admin}/api/v1/metrics?match=http.requests`);
    return (await answer.json()).total === 1;
  });
  const charts = [];
  for (let turn = 0; turn < 5; turn += 1) charts.push(await firstChart());
  const times = charts.map(({ time }) => time).sort((a, b) => a - b);
  const script = Math.max(...charts.map(({ script }) => script));
  console.log(
    `first chart: ${script} bytes of script, ${times.map((time) => time.toFixed(0)).join(", ")} ms after its address`,
  );
  assert.ok(script > 0 && script <= SCRIPT_MAX, `${script} bytes of script, at most ${SCRIPT_MAX}`);
  if (HOLDS_TIME)
    assert.ok(
      times[2] <= FIRST_CHART_MAX,
      `the first chart takes ${times[2]} ms, at most ${FIRST_CHART_MAX}`,
    );

  const opened = await Promise.all(
    Object.entries(MAY).map(async ([view, may]) => {
      const { counts, server, port } = await counter();
      servers.push(server);
      const page = await newPage();
      await page.goto(`http://${HOST}:${port}/#/${view}`);
      await page.locator(".state.good").waitFor();
      return { view, may, counts, page };
    }),
  );
  await until("each stream has begun", async () => opened.every(({ counts }) => counts.flushes > 0));
  await sleep(3000);
  const before = opened.map(({ counts }) => structuredClone(counts));
  const begun = Date.now();
  await sleep(SECONDS * 1000);
  const minutes = (Date.now() - begun) / 60_000;
  const tooMuch = [];
  opened.forEach(({ view, may, counts }, at) => {
    // An agent that is paused leaves out seconds of books, and each gap may be fetched once.
    // Its flushes come late, and each may be followed by a request.
    const fetched = (counts.paths[BOOKS] ?? 0) - (before[at].paths[BOOKS] ?? 0);
    const missed = Math.min(fetched, counts.gaps - before[at].gaps);
    const late = Math.max(0, counts.flushes - before[at].flushes - minutes * 60);
    // One that was about to be made does not count as a rate.
    const more = counts.requests - before[at].requests - missed - late - 1;
    const requests = Math.max(0, more) / minutes;
    const ofMissed = missed > 0 ? ((counts.books - before[at].books) * missed) / fetched : 0;
    const kib = (counts.bytes - before[at].bytes - ofMissed) / minutes / 1024;
    const paths = Object.entries(counts.paths).map(([path, number]) => {
      const more = number - (before[at].paths[path] ?? 0);
      return more > 0 ? `${path} ${more}` : "";
    });
    const said = `${view}: ${requests.toFixed(0)} requests and ${kib.toFixed(0)} KiB a minute`;
    console.log(`${said} (${paths.filter(Boolean).join(", ")})`);
    if (requests > may.requests || kib > may.kib)
      tooMuch.push(`${said}, at most ${may.requests} and ${may.kib}`);
  });
  assert.deepEqual(tooMuch, []);

  // The other tab is in front.
  const hide = (isHidden) => {
    Object.defineProperty(document, "hidden", { value: isHidden, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  };
  const polling = opened.filter(({ view }) => view !== "tail");
  await Promise.all(polling.map(({ page }) => page.evaluate(hide, true)));
  await until("the streams have ended", async () => polling.every(({ counts }) => counts.open === 0));
  const hidden = polling.map(({ counts }) => counts.requests);
  await sleep(6000);
  assert.deepEqual(
    polling.map(({ counts }) => counts.requests),
    hidden,
    "a hidden page asks for nothing",
  );
  await Promise.all(polling.map(({ page }) => page.evaluate(hide, false)));
  await until("the streams are open again", async () => polling.every(({ counts }) => counts.open > 0));
  console.log("a hidden page asks for nothing");
} finally {
  clearInterval(sending);
  socket.close();
  agent.kill("SIGTERM");
  await browser.close();
  for (const server of servers) server.closeAllConnections();
  for (const server of servers) server.close();
  rmSync(folder, { recursive: true, force: true });
}
