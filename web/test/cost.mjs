// The cost of an open page, or of a reader of the tail: two agents side by side under the same load, one of them with it. The other one
// has it in the next window, so that a difference between the two processes falls on both sides.
//
//   WEIR_BIN=../target/release/weir node test/cost.mjs [PAIRS] [SECONDS OF A WINDOW] [page|tail|VIEW] [MESSAGES PER SECOND]
//
// VIEW is a view such as `metrics`, with its parameters.

import { execFileSync, spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync } from "node:fs";
import { createServer } from "node:net";
import { resolve } from "node:path";
import { chromium } from "playwright-core";

const WEIR = resolve(process.env.WEIR_BIN ?? "../target/release/weir");
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const PAIRS = Number(process.argv[2] ?? 12);
const SECONDS = Number(process.argv[3] ?? 10);
const WHAT = process.argv[4] ?? "page";
const RATE = Number(process.argv[5] ?? 200_000);
/** Turns a second of the sender, and messages of a datagram. */
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

const sleep = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));

async function start() {
  const udp = await freePort();
  const admin = await freePort();
  const args = ["run", "--udp", `127.0.0.1:${udp}`, "--admin", `127.0.0.1:${admin}`];
  // On one processor both have the same speed, and lose the same time to others.
  const child = spawn("taskset", ["-c", "0", WEIR, ...args], {
    stdio: "ignore",
    env: { PATH: process.env.PATH },
  });
  while (!(await fetch(`http://127.0.0.1:${admin}/ready`).catch(() => ({}))).ok) await sleep(50);
  return { udp, admin, child };
}

const datagrams = Array.from({ length: CONTEXTS / MESSAGES }, (_, datagram) =>
  Array.from({ length: MESSAGES }, (_, at) => {
    const context = datagram * MESSAGES + at;
    const tags = `env:prod,service:checkout,region:eu-west-1,version:1.${context % 7},host:web-${context % 50}`;
    return `http.server.requests.${context % 20}:${1 + (context % 9)}|${"cgd"[context % 3]}|#${tags},path:/p/${context}`;
  }).join("\n"),
);
const socket = createSocket("udp4");
const agents = [await start(), await start()];
let sent = 0;
const begun = performance.now();
const sending = setInterval(() => {
  const due = Math.min(((performance.now() - begun) / 1000) * (RATE / MESSAGES), sent + RATE / MESSAGES / 20);
  for (; sent < due; sent += 1)
    for (const { udp } of agents) socket.send(datagrams[sent % datagrams.length], udp, "127.0.0.1");
}, 1000 / TURNS);

/** The kernel's clock of a process's CPU time in nanoseconds, threads that have ended included; and the messages it has received. */
async function now() {
  const clock =
    "import sys, time; print(*[time.clock_gettime_ns((~int(pid) << 3) | 2) for pid in sys.argv[1:]])";
  const ids = agents.map(({ child }) => String(child.pid));
  const cpu = execFileSync("python3", ["-c", clock, ...ids], { encoding: "utf8" })
    .split(" ")
    .map(Number);
  return Promise.all(
    agents.map(async ({ admin }, at) => {
      const status = await (await fetch(`http://127.0.0.1:${admin}/api/v1/status`)).json();
      return { cpu: cpu[at], messages: status.total.messages.received };
    }),
  );
}

/** Nanoseconds per message of a window, for each agent. */
async function window() {
  const before = await now();
  await sleep(SECONDS * 1000);
  const after = await now();
  return before.map((one, at) => {
    const messages = after[at].messages - one.messages;
    const cpu = after[at].cpu - one.cpu;
    return { cost: cpu / messages, core: cpu / SECONDS / 1e9, rate: messages / SECONDS };
  });
}

/** The mean, and its interval of 90 %. */
function interval(values) {
  const mean = values.reduce((sum, one) => sum + one, 0) / values.length;
  const variance = values.reduce((sum, one) => sum + (one - mean) ** 2, 0) / (values.length - 1);
  // Student's t of 90 % for 5 to 30 values lies between 2.13 and 1.70.
  const half = (1.65 + 2 / values.length) * Math.sqrt(variance / values.length);
  return { mean, low: mean - half, high: mean + half };
}

/** A reader that takes every event of the tail. */
function readTail(admin) {
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

/** The page or the tail as two functions: open it at an agent instead of the other, and end it. */
async function subject() {
  if (WHAT === "tail") {
    let end = async () => {};
    const open = async (admin) => {
      await end();
      end = readTail(admin);
    };
    return { open, close: () => end() };
  }
  const browser = await chromium.launch({
    executablePath: BROWSER,
    args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  });
  const page = await browser.newPage({ viewport: { width: 1200, height: 800 } });
  const open = async (admin) => {
    await page.goto("about:blank");
    await page.goto(`http://127.0.0.1:${admin}/#/${WHAT === "page" ? "overview" : WHAT}`);
    await page.locator(".state.good").waitFor();
  };
  return { open, close: () => browser.close() };
}

const { open, close } = await subject();
try {
  const ratios = [];
  const costs = { with: [], without: [] };
  const cores = [];
  let rate = 0;
  await sleep(12_000);
  for (let pair = 0; pair < PAIRS; pair += 1) {
    const logs = [];
    for (const watched of pair % 2 === 0 ? [0, 1] : [1, 0]) {
      await open(agents[watched].admin);
      await sleep(2000);
      const both = await window();
      const [one, other] = [both[watched], both[1 - watched]];
      costs.with.push(one.cost);
      costs.without.push(other.cost);
      logs.push(Math.log(one.cost / other.cost));
      cores.push(one.core - other.core);
      rate = one.rate;
    }
    // Both windows together: what distinguishes the two processes cancels.
    ratios.push((logs[0] + logs[1]) / 2);
    const share = ((Math.exp(ratios.at(-1)) - 1) * 100).toFixed(2);
    console.log(
      `pair ${pair + 1}: ${share} % (windows ${logs.map((log) => (log * 100).toFixed(2)).join(", ")})`,
    );
  }
  const percent = (ratio) => `${((Math.exp(ratio) - 1) * 100).toFixed(2)} %`;
  const median = (values) => values.toSorted((a, b) => a - b)[Math.floor(values.length / 2)].toFixed(1);
  const ratio = interval(ratios);
  const core = interval(cores);
  const ofCore = (share) => `${(share * 100).toFixed(2)} %`;
  console.log(
    `${WHAT} open: ${percent(ratio.mean)} (${percent(ratio.low)} to ${percent(ratio.high)}) CPU per message at ` +
      `${Math.round(rate / 1000)}k messages a second; medians ${median(costs.without)} ns without and ` +
      `${median(costs.with)} ns with; ${ofCore(core.mean)} of a core (${ofCore(core.low)} to ${ofCore(core.high)}); ` +
      `${PAIRS} pairs of ${SECONDS} s windows`,
  );
} finally {
  clearInterval(sending);
  socket.close();
  for (const { child } of agents) child.kill("SIGTERM");
  await close();
}
