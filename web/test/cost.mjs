// The cost of an open page, or of a reader of the tail: the agent's CPU per message with and without it, in pairs of windows of one agent.
//
//   WEIR_BIN=../target/release/weir node test/cost.mjs [PAIRS] [SECONDS OF A WINDOW] [page|tail]

import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { createServer } from "node:net";
import { resolve } from "node:path";
import { chromium } from "playwright-core";

const WEIR = resolve(process.env.WEIR_BIN ?? "../target/release/weir");
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const PAIRS = Number(process.argv[2] ?? 12);
const SECONDS = Number(process.argv[3] ?? 10);
const WHAT = process.argv[4] ?? "page";
/** Datagrams of a turn, turns a second, and messages of a datagram. */
const BURST = 50;
const TURNS = 100;
const MESSAGES = 40;
const CONTEXTS = 1000;

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, "127.0.0.1", done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

const udp = await freePort();
const admin = await freePort();
const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const agent = spawn(WEIR, ["run", "--udp", `127.0.0.1:${udp}`, "--admin", `127.0.0.1:${admin}`], {
  stdio: "ignore",
  env: { PATH: process.env.PATH },
});
while (!(await fetch(`http://127.0.0.1:${admin}/ready`).catch(() => ({}))).ok) await sleep(50);

const datagrams = Array.from({ length: CONTEXTS / MESSAGES }, (_, datagram) =>
  Array.from({ length: MESSAGES }, (_, at) => {
    const context = datagram * MESSAGES + at;
    const tags = `env:prod,service:checkout,region:eu-west-1,version:1.${context % 7},host:web-${context % 50}`;
    return `http.server.requests.${context % 20}:${1 + (context % 9)}|${"cgd"[context % 3]}|#${tags},path:/p/${context}`;
  }).join("\n"),
);
const socket = createSocket("udp4");
let turn = 0;
const sending = setInterval(() => {
  for (let at = 0; at < BURST; at += 1)
    socket.send(datagrams[(turn + at) % datagrams.length], udp, "127.0.0.1");
  turn += BURST;
}, 1000 / TURNS);

/**
 * CPU nanoseconds of the agent, and messages it has received. The scheduler's own counts: the ticks of /proc/PID/stat are
 * 10 ms, which is more than the page may cost in a window.
 */
async function now() {
  const status = await (await fetch(`http://127.0.0.1:${admin}/api/v1/status`)).json();
  const threads = readdirSync(`/proc/${agent.pid}/task`);
  const spent = threads.map((id) =>
    Number(readFileSync(`/proc/${agent.pid}/task/${id}/schedstat`, "utf8").split(" ")[0]),
  );
  return { cpu: spent.reduce((sum, one) => sum + one, 0), messages: status.total.messages.received };
}

/** Nanoseconds per message of a window, and the share of a core. */
async function window() {
  const before = await now();
  await sleep(SECONDS * 1000);
  const after = await now();
  const messages = after.messages - before.messages;
  const cpu = after.cpu - before.cpu;
  return { cost: cpu / messages, core: cpu / SECONDS / 1e9, rate: messages / SECONDS };
}

/** The mean of pairs, and its interval of 90 %. */
function interval(values) {
  const mean = values.reduce((sum, one) => sum + one, 0) / PAIRS;
  const variance = values.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (PAIRS - 1);
  // Student's t of 90 % for 5 to 30 pairs lies between 2.13 and 1.70.
  const half = (1.65 + 2 / PAIRS) * Math.sqrt(variance / PAIRS);
  return { mean, low: mean - half, high: mean + half };
}

/** A reader that takes every event of the tail. */
function readTail() {
  const ending = new AbortController();
  const reading = (async () => {
    const answer = await fetch(`http://127.0.0.1:${admin}/api/v1/tail`, { signal: ending.signal });
    let bytes = 0;
    for await (const piece of answer.body) bytes += piece.length;
    return bytes;
  })().catch((error) => {
    if (error.name !== "AbortError") throw error;
  });
  return async () => {
    ending.abort();
    await reading;
  };
}

/** The page or the tail as three functions: open it, leave it, and end what it needed. */
async function subject() {
  if (WHAT === "tail") {
    let end = async () => {};
    const open = async () => {
      await end();
      end = readTail();
      await sleep(2000);
    };
    return { open, away: () => end(), close: async () => end() };
  }
  const browser = await chromium.launch({
    executablePath: BROWSER,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const page = await browser.newPage({ viewport: { width: 1200, height: 800 } });
  const open = async () => {
    await page.goto(`http://127.0.0.1:${admin}/#/overview`);
    await page.locator(".state.good").waitFor();
    await sleep(2000);
  };
  return { open, away: () => page.goto("about:blank"), close: () => browser.close() };
}

const { open, away, close } = await subject();
try {
  const ratios = [];
  const costs = { with: [], without: [] };
  const cores = [];
  let rate = 0;
  await sleep(12_000);
  for (let pair = 0; pair < PAIRS; pair += 1) {
    const pairOf = {};
    // In turns, so that a drift falls on both.
    for (const what of pair % 2 === 0 ? ["without", "with"] : ["with", "without"]) {
      await (what === "with" ? open() : away());
      pairOf[what] = await window();
      costs[what].push(pairOf[what].cost);
      rate = pairOf[what].rate;
    }
    ratios.push(Math.log(pairOf.with.cost / pairOf.without.cost));
    cores.push(pairOf.with.core - pairOf.without.core);
    console.log(
      `pair ${pair + 1}: ${pairOf.without.cost.toFixed(1)} ns without, ${pairOf.with.cost.toFixed(1)} ns with`,
    );
  }
  const percent = (ratio) => `${((Math.exp(ratio) - 1) * 100).toFixed(1)} %`;
  const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)].toFixed(1);
  const ratio = interval(ratios);
  const core = interval(cores);
  const ofCore = (share) => `${(share * 100).toFixed(2)} %`;
  console.log(
    `${WHAT} open: ${percent(ratio.mean)} (${percent(ratio.low)} to ${percent(ratio.high)}) CPU per message at ` +
      `${Math.round(rate / 1000)}k messages a second; medians ${median(costs.without)} and ${median(costs.with)} ns; ` +
      `${ofCore(core.mean)} of a core (${ofCore(core.low)} to ${ofCore(core.high)}); ${PAIRS} pairs`,
  );
} finally {
  clearInterval(sending);
  socket.close();
  agent.kill("SIGTERM");
  await close();
}
