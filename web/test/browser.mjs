// The page in a real browser, served by the real agent: what it shows equals what was sent.
//
//   WEIR_BIN=../target/debug/weir node test/browser.mjs [DIRECTORY FOR SCREENSHOTS, instead of build/screenshots]

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { createSocket } from "node:dgram";
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { chromium } from "playwright-core";

const WEIR = resolve(process.env.WEIR_BIN ?? "../target/debug/weir");
// A loopback address of its own: the kernel hands out a port of 127.0.0.1 again before the agent listens on it.
const HOST = `127.${1 + (process.pid % 254)}.7.1`;
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find(existsSync);
const SHOTS = resolve(process.argv[2] ?? "build/screenshots");
mkdirSync(SHOTS, { recursive: true });
const PATIENCE = 60_000;

if (!BROWSER) throw new Error("no Chromium: make deps installs it");

async function freePort() {
  const server = createServer();
  await new Promise((done) => server.listen(0, HOST, done));
  const { port } = server.address();
  await new Promise((done) => server.close(done));
  return port;
}

const folder = mkdtempSync(join(tmpdir(), "weir-page-"));
const udp = await freePort();
const admin = await freePort();

async function startAgent(at = { udp, admin }, width = "1s") {
  const args = [
    "run",
    "--udp",
    `${HOST}:${at.udp}`,
    "--admin",
    `${HOST}:${at.admin}`,
    "--bucket-width",
    width,
  ];
  const agent = spawn(WEIR, args, {
    stdio: ["ignore", "ignore", "inherit"],
    cwd: folder,
    env: { PATH: process.env.PATH },
  });
  const ended = new Promise((done) => agent.on("exit", (code, signal) => done(code ?? signal)));
  const early = ended.then((how) => Promise.reject(new Error(`${WEIR} ended before it was ready: ${how}`)));
  await Promise.race([
    early,
    until("the agent is ready", async () => (await fetch(`http://${HOST}:${at.admin}/ready`)).ok),
  ]);
  return {
    async stop() {
      agent.kill("SIGTERM");
      assert.equal(await ended, 0);
    },
    kill: () => agent.kill("SIGKILL"),
  };
}

async function until(what, holds) {
  const deadline = Date.now() + PATIENCE;
  for (;;) {
    const value = await holds().catch(() => undefined);
    if (value) return value;
    if (Date.now() > deadline) throw new Error(`in vain waited until ${what}`);
    await new Promise((done) => setTimeout(done, 50));
  }
}

const socket = createSocket("udp4");
function send(lines, port = udp) {
  return new Promise((done, failed) => {
    socket.send(lines.join("\n"), port, HOST, (error) => (error ? failed(error) : done()));
  });
}

/** The samples that were sent, for comparison. */
const sent = { page: 0, byUser: new Map() };
async function sendSome(rounds) {
  for (let round = 0; round < rounds; round += 1) {
    const lines = [];
    for (const user of ["ann", "ben", "cyd"]) {
      const count = 1 + ((round * 7 + user.charCodeAt(0)) % 5);
      sent.page += count;
      sent.byUser.set(user, (sent.byUser.get(user) ?? 0) + count);
      lines.push(`page.views:${count}|c|#user:${user},env:prod`);
      lines.push(`latency:${20 + ((round * 31 + user.charCodeAt(1)) % 300)}|d|#user:${user}`);
    }
    lines.push(`temperature:${20 + (round % 7) / 10}|g`, `queue.length:${round % 40}|g|#queue:mail`);
    await send(lines);
    await new Promise((done) => setTimeout(done, 40));
  }
}

/** Traffic beside what tests look at, so that pictures show something: times of four endpoints, each with a wave of its own. */
let wave = 0;
const traffic = setInterval(() => {
  wave += 1;
  const lines = ["/cart", "/checkout", "/product", "/search"].flatMap((endpoint, at) => {
    const base = 30 + 25 * at + (12 + 4 * at) * Math.sin(wave / (25 + 9 * at));
    return [0, 1, 2].map((sample) => {
      const spread = ((wave * 7919 + sample * 104_729 + at * 31) % 17) / 2;
      return `request.duration:${(base + spread).toFixed(1)}|d|#endpoint:${endpoint}`;
    });
  });
  send(lines).catch(() => {});
}, 50);

async function json(path) {
  return (await fetch(`http://${HOST}:${admin}/api/v1/${path}`)).json();
}

const total = (points) =>
  points.groups.flatMap((group) => group.values).reduce((sum, value) => sum + (value ?? 0), 0);

/** So many metrics, each until the agent has it: datagrams may be dropped. */
async function sendNames(count) {
  const status = async () => (await json("status")).total.messages;
  for (let first = 0; first < count; ) {
    const before = (await status()).received;
    const end = Math.min(first + 4000, count);
    const names = Array.from({ length: end - first }, (_, at) => `many.metric.of.service.${first + at}:1|c`);
    for (let at = 0; at < names.length; at += 40) await send(names.slice(at, at + 40));
    const arrived = async () => (await status()).received - before === names.length;
    const deadline = Date.now() + 10_000;
    while (!(await arrived()) && Date.now() < deadline) await new Promise((done) => setTimeout(done, 50));
    if (await arrived()) first = end;
  }
  await until(
    "they are in the history",
    async () => (await json("metrics?match=many.metric&limit=1&details=0")).total === count,
  );
}

/** Whether what can be seen of the list has rows in it. */
const rowsInView = (page) => async () =>
  page.evaluate(() => {
    const box = document.querySelector(".rows").getBoundingClientRect();
    const middle = document.elementFromPoint(
      box.x + 60,
      box.y + Math.min(box.height, innerHeight - box.y) / 2,
    );
    return middle?.closest(".row") !== null && middle?.closest(".row") !== undefined;
  });

/** Milliseconds of CPU time that the page's own thread has taken. */
async function threadTime() {
  const session = await browser.newBrowserCDPSession();
  const { processInfo } = await session.send("SystemInfo.getProcessInfo");
  const renderers = processInfo.filter((process) => process.type === "renderer");
  const { id } = renderers.reduce((most, one) => (one.cpuTime > most.cpuTime ? one : most));
  // In a renderer the first thread is the page's.
  return () => Number(readFileSync(`/proc/${id}/task/${id}/schedstat`, "utf8").split(" ")[0]) / 1e6;
}

const browser = await chromium.launch({
  timeout: PATIENCE,
  executablePath: BROWSER,
  args: ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"],
  // It leaves its socket behind.
  env: { ...process.env, TMPDIR: folder },
});
let agent = await startAgent();
const done = [];
async function test(name, run) {
  await run();
  done.push(name);
  console.log(`ok ${name}`);
}

try {
  const context = await browser.newContext({ viewport: { width: 1200, height: 800 }, colorScheme: "light" });
  context.setDefaultTimeout(PATIENCE);
  const page = await context.newPage();
  const foreign = [];
  const broken = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(`http://${HOST}:${admin}/`) && !request.url().startsWith("data:"))
      foreign.push(request.url());
  });
  page.on("pageerror", (error) => {
    console.log(`   ${error.stack}`);
    broken.push(String(error));
  });
  page.on("console", (message) => {
    // The browser itself logs that the agent went away.
    if (message.type() === "error" && !message.text().includes("net::ERR")) broken.push(message.text());
  });
  const open = (view) => page.goto(`http://${HOST}:${admin}/#/${view}`);
  const shot = async (name) => {
    await page.screenshot({ path: join(SHOTS, `${name}.png`) });
  };
  const text = (selector) => page.locator(selector).innerText();

  await test("the page opens and says that nothing is lost", async () => {
    await open("overview");
    await until("the page is live", async () => (await text(".state")) === "live");
    await sendSome(60);
    // A machine that is short of time does lose something: the failure says what.
    await until("nothing is lost", async () => (await text(".fine")).includes("Nothing was lost")).catch(
      async (error) => {
        throw new Error(`${error.message}: ${await text("main")}`);
      },
    );
    await until("messages are shown", async () => !/^(–|0)$/.test(await text(".figure .value >> nth=0")));
    assert.equal(await page.locator(".alarm").count(), 0);
    assert.deepEqual(await json("losses"), []);
  });

  await test("before the first bucket ends, the page says what arrived and when it ends", async () => {
    const at = { udp: await freePort(), admin: await freePort() };
    // Buckets end with the clock: the one that is open for longer.
    const open = (minutes) => minutes * 60 - ((Date.now() / 1000) % (minutes * 60));
    const slow = await startAgent(at, open(20) > open(19) ? "20m" : "19m");
    try {
      const other = await context.newPage();
      await other.goto(`http://${HOST}:${at.admin}/#/metrics`);
      await until("none has arrived", async () =>
        (await other.locator("main").innerText()).includes("No metric has arrived yet"),
      );
      await send(["page.views:1|c", "latency:20|d"], at.udp);
      await until("two have arrived", async () =>
        /2 messages arrived\. The first bucket ends in \d+ (min|s);/.test(
          await other.locator("main").innerText(),
        ),
      );
      await other.close();
    } finally {
      slow.kill();
    }
  });

  await test("search finds metrics, one of which opens as a chart", async () => {
    await open("metrics");
    await page.fill("input[type=search]", "PAGE*");
    await until("one metric is left", async () => (await page.locator(".rows .row").count()) === 1);
    await until("a sparkline is drawn", async () =>
      (await page.locator(".rows .row .spark path").getAttribute("d"))?.includes("L"),
    );
    await page.locator(".rows .row").click();
    await until("the chart is there", async () => (await page.locator(".chart canvas").count()) === 1);
    assert.match(page.url(), /metric=page\.views/);
  });

  await test("values equal what was sent", async () => {
    await until(
      "everything is counted",
      async () => total(await json("query?metric=page.views&fn=sum")) === sent.page,
    );
    const groups = (await json("query?metric=page.views&fn=sum&by=user")).groups;
    for (const group of groups) {
      const user = group.tags[0][1];
      assert.equal(total({ groups: [group] }), sent.byUser.get(user), user);
    }
    await page.locator("label:has-text('Group by') select").selectOption("user");
    const legend = async () => text(".legend");
    await until("each user has a line", async () => {
      const lines = await legend();
      return ["user:ann", "user:ben", "user:cyd"].every((user) => lines.includes(user));
    });
    await page.locator(".legend button:has-text('user:ben')").click();
    assert.match(page.url(), /hide=user%3Aben/);
    await page.locator(".legend tr:has-text('user:cyd') button:has-text('only')").click();
    assert.match(page.url(), /only=user%3Acyd/);
    assert.doesNotMatch(page.url(), /hide=/);
    await page.goBack();
    assert.match(page.url(), /hide=user%3Aben/, "Back undoes a choice");
    await page.goBack();
    await until("it is shown again", async () => !page.url().includes("hide="));
    await page.keyboard.press("v");
    await until("values are a table", async () =>
      (await text("section[aria-label=values]")).includes("user:ann"),
    );
    // The mean of the legend is that of the agent's points.
    const points = (await json("query?metric=page.views&by=user")).groups.map((group) =>
      group.values.filter(Number.isFinite),
    );
    assert.equal(await page.locator(".legend tbody tr").count(), points.length);
  });

  await test("one kind of metrics is chosen by a button or a key, and is in the address", async () => {
    await send(["users.unique:ann|s", "users.unique:ben|s"]);
    await until("it is there", async () => (await json("metrics?kind=set")).total === 1);
    await open("metrics");
    const kinds = page.locator("fieldset[aria-label=kinds]");
    const chosen = async () => kinds.locator("[aria-pressed=true]").innerText();
    const listed = async () => page.locator(".rows .kind").allInnerTexts();
    const only =
      (...kinds) =>
      async () => {
        const rows = await listed();
        return rows.length > 0 && rows.every((kind) => kinds.includes(kind));
      };
    await until("sets are offered", async () => /sets\s+1/.test(await kinds.innerText()));
    await kinds.locator("button:has-text('gauges')").click();
    await until("gauges are left", only("gauge"));
    assert.match(page.url(), /kind=gauge/);
    const { total } = await json("metrics?kind=gauge");
    assert.match(await chosen(), new RegExp(`gauges\\s+${total}$`));
    await page.reload();
    await until("a link shows the same", only("gauge"));
    await page.keyboard.press("k");
    await until("the key chooses the next kind", only("distribution", "histogram"));
    await page.keyboard.press("k");
    await until("and the next", only("set"));
    await page.goBack();
    await until("Back undoes it", only("distribution", "histogram"));
    await page.locator(".rows .row >> nth=0").click();
    await page.locator("a:has-text('← metrics')").click();
    await until("the way back from a chart keeps it", only("distribution", "histogram"));
    await page.fill("input[type=search]", "users");
    await until("the search is within the kind", async () =>
      (await text("main")).includes("No metric of this kind matches users"),
    );
    await page.locator("fieldset button:has-text('all')").click();
    await until("the search is kept", async () => /users\.unique\s+set/.test(await text(".rows")));
    await page.fill("input[type=search]", "");
    await page.locator("label:has-text('Sort by') select").selectOption("samples");
    await until("the busiest is first", async () =>
      /^request\.duration/.test(await page.locator(".rows .row >> nth=0").innerText()),
    );
  });

  await test("a timer is one metric, and the names of its aggregates open charts", async () => {
    await send(["login.time:31|ms|#user:ann", "login.time:900|ms|#user:ben"]);
    await until("it is there", async () => (await json("metrics?match=login")).total === 1);
    await open("metrics?match=login");
    await until(
      "it has one row, and nothing else",
      async () =>
        (await page.locator(".rows .row").count()) === 1 &&
        /login\.time\s+histogram/.test(await text(".rows")),
    );
    await page.locator(".rows .row").click();
    await until("there is a chart", async () => (await page.locator(".chart canvas").count()) === 1);
    for (const [name, shown] of [
      ["95percentile", "p95"],
      ["median", "p50"],
      ["count", "rate"],
      ["max", "max"],
    ]) {
      await open(`metrics?metric=login.time.${name}`);
      const choice = page.locator("label:has-text('Show') select");
      await until(`${name} is ${shown}`, async () => (await choice.inputValue()) === shown);
    }
  });

  await test("two metrics have a ratio by group, which zoom, pan and undo move", async () => {
    await open("metrics?metric=page.views&where=user:ann");
    await until("there is a chart", async () => (await page.locator(".chart canvas").count()) === 1);
    // A name is added when it is whole, if it is one of the suggestions by then.
    const name = page.locator("input[list=metrics]");
    await name.pressSequentially("page.view", { delay: 50 });
    await page.locator("#metrics option[value='page.views']").waitFor({ state: "attached" });
    await name.press("s");
    await until("there is another", async () => page.url().includes("metric.b=page.views"));
    await page.locator("label:has-text('Formula') select").selectOption("a/b");
    await until("the share of one user is below 1", async () => {
      const max = Number((await page.locator(".legend tbody tr td").nth(2).innerText()).trim());
      return max > 0 && max < 1;
    });
    const whole = page.url();
    let chart;
    // It is drawn again with each answer.
    await until("the chart has a place", async () => {
      chart = await page.locator(".chart .u-over").boundingBox();
      return chart !== null;
    });
    await page.mouse.move(chart.x + chart.width * 0.3, chart.y + 50);
    await page.mouse.down();
    await page.mouse.move(chart.x + chart.width * 0.6, chart.y + 60, { steps: 5 });
    await page.mouse.up();
    await until("it has zoomed", async () => /from=\d+&to=\d+/.test(page.url()));
    const near = page.url();
    await page.keyboard.press("[");
    await until("it has moved", async () => page.url() !== near);
    await page.keyboard.press("u");
    await until("that is undone", async () => page.url() === near);
    await page.keyboard.press("u");
    await until("all of it is undone", async () => page.url() === whole);
    await shot("ratio");
    await page.keyboard.press("?");
    await until("the keys are listed", async () => (await text("main")).includes("undoes the last choice"));
    for (const view of ["metrics", "metrics?metric=page.views", "tail", "explain"]) {
      await open(view);
      await page.locator("main input >> nth=0").waitFor();
      await page.keyboard.press("/");
      const focused = await page.evaluate(() => document.activeElement?.matches("main input"));
      assert.ok(focused, `/ leads to the field of ${view}`);
      await page.keyboard.press("Escape");
    }
  });

  await test("Enter adds a metric whose suggestions have not arrived", async () => {
    await open("metrics?metric=page.views");
    await until("there is a chart", async () => (await page.locator(".chart canvas").count()) === 1);
    const suggestions = /\/api\/v1\/metrics\?match=/;
    await page.route(suggestions, () => {});
    const name = page.locator("input[list=metrics]");
    await name.pressSequentially("latency");
    await name.press("Enter");
    await until("there is another", async () => page.url().includes("metric.b=latency"));
    await until("the field is empty", async () => (await name.inputValue()) === "");
    await page.unroute(suggestions);
  });

  await test("contexts, senders and names at the outputs are behind a chart", async () => {
    await open("metrics?metric=page.views&where=user:ann");
    await page.locator("summary:has-text('Names at the outputs')").click();
    await until("the names are there", async () =>
      (await text("section[aria-label='names at the outputs']")).includes('page_views_total{user="ann"}'),
    );
    await page.locator("button:has-text('a line for each context')").click();
    await until("each context has a line", async () => (await text(".legend")).includes("env:prod user:ann"));
    assert.equal(
      await page.locator("a:has-text('messages and senders')").getAttribute("href"),
      "#/tail?match=page.views",
    );
  });

  await test("a distribution has a heat map", async () => {
    await open("metrics?metric=latency&fn=heatmap");
    await until("the heat map is there", async () => (await page.locator(".heatmap canvas").count()) === 1);
    await shot("heatmap");
  });

  await test("a provoked loss appears at once, with what to do", async () => {
    await open("overview");
    await until("the page is live", async () => (await text(".state")) === "live");
    await until("the list of losses is known", async () => (await page.locator(".fine").count()) === 1);
    // The page asks again after ten seconds, and at once when a loss has risen. The former gets no answer here.
    const status = "**/api/v1/status*";
    const unanswered = [];
    let newest = 0;
    await page.route(status, (route) => {
      const risen = Number(new URL(route.request().url()).searchParams.get("risen") ?? 0);
      if (risen <= newest) return unanswered.push(route);
      newest = risen;
      return route.continue();
    });
    await send(["this is no metric"]);
    const start = Date.now();
    await page.locator(".alarm").waitFor({ timeout: PATIENCE });
    // Printed, not held to a second: books are per second, and a machine that is short of time takes longer.
    console.log(`   after ${((Date.now() - start) / 1000).toFixed(2)} s`);
    assert.match(await text(".alarm"), /1 message\b/);
    // Right behind the first one.
    await send(["nor is this"]);
    await until("the second one is there too", async () => /2 messages\b/.test(await text(".alarm")));
    await page.unroute(status);
    await Promise.all(unanswered.map((route) => route.continue().catch(() => {})));
    await shot("loss");
  });

  await test("a client's own drops stand beside the agent's losses", async () => {
    const tags = "client:go,client_version:5.9.0,client_transport:udp";
    const family = "datadog.dogstatsd.client.packets_dropped";
    await send([`${family}:7|c|#${tags}`, `${family}_queue:7|c|#${tags}`]);
    await until("the client has a row", async () =>
      /go 5\.9\.0.*7/s.test(await text("section[aria-label=clients]").catch(() => "")),
    );
    await until("it is a loss with its remedy", async () =>
      (await text(".alarm").catch(() => "")).includes("Raise its queue"),
    );
  });

  await test("a message is explained", async () => {
    await open("explain");
    await page.fill("form input", "page.views:1|c|#user:me");
    await page.locator("form button").click();
    await until("it is accepted", async () => (await text(".fine")).includes("Accepted"));
    assert.match(await text("main table >> nth=0"), /user:me/);
    assert.match(
      await text("section[aria-label='names at the outputs']"),
      /prometheus\s+page_views_total\{user="me"\}/,
    );
    await page.fill("form input", "http.requests:1|q");
    await page.locator("form button").click();
    await until("it is rejected", async () => (await text(".alarm")).includes("Rejected: bad_type"));
    await page.goBack();
    await until("the field has what the result is of", async () => {
      const isBack = (await text(".fine")).includes("Accepted");
      return isBack && (await page.locator("form input").inputValue()) === "page.views:1|c|#user:me";
    });
    await page.goForward();
    await until("it is rejected again", async () => (await text(".alarm")).includes("Rejected: bad_type"));
    assert.equal(await text(".alarm mark"), "q");
    assert.match(await text(".alarm"), /byte 16 of 17[\s\S]*none of c, g, h, d, s, ms/);
  });

  await test("a dropped message is not accepted, and an event is no metric", async () => {
    await open(`explain?line=${encodeURIComponent("late:12|ms|T1600000000")}`);
    await until("it is dropped", async () => (await text("main")).includes("Dropped: timestamp"));
    assert.equal(await page.locator(".fine").count(), 0);
    await open(`explain?line=${encodeURIComponent("_e{5,4}:title|text")}`);
    await until("it is accepted", async () => (await text(".fine")).includes("Accepted"));
    assert.match(await text("main table >> nth=0"), /name\s+title\s+type\s+event/);
    assert.equal(await page.locator("main table a").count(), 0);
  });

  await test("a filter without contexts says so", async () => {
    await open("metrics?metric=page.views&where=user:nobody");
    await until("nothing is found", async () =>
      (await text("main")).includes("No context of page.views with user:nobody is in this window."),
    );
  });

  await test("messages are shown as they arrive, rejected ones with their reason and its place", async () => {
    await open("tail?match=tail");
    await until("the stream is open", async () =>
      /as they arrive|arrived in/.test(await text("main [role=status]")),
    );
    // Until the worker copies, nothing is seen.
    await until("a message is shown", async () => {
      await send(["tail.first:1|c|#user:ann", "other.first:1|c"]);
      return (await page.locator(".tail li").count()) > 0;
    });
    await send(["tail.second:zwei|c|#user:ben"]);
    const bad = page.locator(".tail li.rejected");
    await bad.first().waitFor({ timeout: PATIENCE });
    assert.equal(await bad.first().locator("mark").innerText(), "zwei");
    assert.match(await bad.first().innerText(), /rejected: bad_value, bytes 12 to 15 of 28/);
    assert.doesNotMatch(await text(".tail"), /other\.first/);
    await shot("tail");
    await page.locator("button:has-text('pause')").click();
    await until("it is paused", async () => (await text("main [role=status]")).includes("Paused"));
    const count = await page.locator(".tail li").count();
    await send(["tail.third:1|c"]);
    await until("it has come", async () => (await json("metrics?match=tail.third")).total === 1);
    assert.equal(await page.locator(".tail li").count(), count);
    assert.match(page.url(), /match=tail&paused=1/);
    await page.locator("button:has-text('resume')").click();
    await page.locator("input[type=checkbox]").check();
    assert.match(page.url(), /verdict=rejected/);
    await until("only rejected ones are shown", async () => {
      await send(["tail.fourth:1|c", "tail.fifth:1|x"]);
      const lines = await page.locator(".tail li").allInnerTexts();
      return lines.length > 0 && lines.every((line) => line.includes("rejected: bad_type"));
    });
  });

  await test("cardinality names the metric with most contexts, and writes a rule", async () => {
    await open("cardinality");
    await until("metrics are listed", async () => (await page.locator("tbody tr").count()) > 2);
    await page.locator("tr:has-text('page.views') button").click();
    assert.match(await text("pre"), /^rules:/);
    // A click far above shows what it did.
    await until("the rule is in view", async () =>
      page.evaluate(() => {
        const top = document.activeElement?.getBoundingClientRect().top ?? -1;
        return document.activeElement?.tagName === "H2" && top >= 0 && top < innerHeight;
      }),
    );
    await page.locator("label:has-text('Leave out the tag') select").selectOption("user");
    await until("the agent has tried it", async () => (await text("main")).includes("would remove 2 of"));
    assert.match(await text(".examples"), /page\.views\{env:prod,user:ann\} → page\.views\{env:prod\}/);
    await shot("rule");
  });

  await test("every loss that the agent lists is on the page, with number, place and remedy", async () => {
    await open("overview");
    const list = await json("losses");
    assert.ok(list.length >= 3, JSON.stringify(list));
    await until(
      "all are shown",
      async () => (await page.locator(".alarm li, .earlier li").count()) >= list.length,
    );
    await page.evaluate(() => document.querySelector(".earlier")?.setAttribute("open", ""));
    const items = await page.locator(".alarm li, .earlier li").allInnerTexts();
    const plain = (text) => text.replaceAll("`", "");
    for (const loss of list) {
      const item = items.find((item) => item.includes(plain(loss.meaning)) && item.includes(loss.place));
      assert.ok(
        item?.includes(loss.unit.replace(/e?s$/, "")) && item.includes(plain(loss.remedy)),
        `${JSON.stringify(loss)} is not in ${items}`,
      );
    }
  });

  await test("outputs are shown", async () => {
    await open("outputs");
    await until("there is the scrape output", async () => (await text("main")).includes("prometheus"));
    await page.mouse.move(0, 0);
    await until("without a cursor, legends have the newest values", async () =>
      /time\d\d:\d\d:\d\ddelivered\/s\d.*dropped\/s0/.test(await text(".u-legend >> nth=0")),
    );
  });

  await test("axe finds nothing serious, in both themes and at all widths", async () => {
    const axe = readFileSync(new URL("../node_modules/axe-core/axe.min.js", import.meta.url), "utf8");
    const sizes = [360, 768, 1280].flatMap((width) => [
      [width, "light"],
      [width, "dark"],
    ]);
    for (const [width, colorScheme] of sizes) {
      await page.setViewportSize({ width, height: 800 });
      await page.emulateMedia({ colorScheme });
      for (const view of [
        "overview",
        "metrics",
        "metrics?metric=page.views&by=user",
        "metrics?metric=latency&fn=heatmap",
        "help",
        "cardinality",
        "tail",
        "explain",
        "outputs",
      ]) {
        await open(view);
        await until("the page is live", async () => (await text(".state")) === "live");
        await page.waitForLoadState("load");
        const { violations } = await page.evaluate(
          `${axe}; axe.run(document, { resultTypes: ["violations"] })`,
        );
        const serious = violations.filter((found) => ["serious", "critical"].includes(found.impact));
        const shown = serious.map(
          (found) => `${found.id}: ${found.nodes.map((node) => node.html).join(" ")}`,
        );
        assert.deepEqual(shown, [], `${view} in ${colorScheme}, ${width} pixels`);
        // Axe looks at no placeholder.
        const contrasts = await page.evaluate(() => {
          const light = (colour) => {
            const parts = colour.match(/[\d.]+/g).slice(0, 3);
            const [red, green, blue] = parts.map((part) => {
              const share = part / 255;
              return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
            });
            return 0.2126 * red + 0.7152 * green + 0.0722 * blue + 0.05;
          };
          return [...document.querySelectorAll("input[placeholder]")].map((input) => {
            const text = light(getComputedStyle(input, "::placeholder").color);
            const ground = light(getComputedStyle(input).backgroundColor);
            return Math.max(text / ground, ground / text);
          });
        });
        assert.ok(
          contrasts.every((contrast) => contrast >= 4.5),
          `placeholders of ${view} in ${colorScheme}: ${contrasts}`,
        );
      }
    }
    await page.setViewportSize({ width: 1200, height: 800 });
    for (const colorScheme of ["dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      await open("metrics?metric=request.duration&by=endpoint&fn=p95");
      await page.reload();
      await until("the chart is there", async () => (await page.locator(".chart canvas").count()) === 1);
      await until("each endpoint has a line", async () => (await text(".legend")).includes("/search"));
      await shot(`metric-${colorScheme}`);
    }
    await open("overview");
    await until("the page is live", async () => (await text(".state")) === "live");
    await shot("overview");
  });

  await test("360 pixels are enough", async () => {
    await send([`wide.metric:1|c|#region:${"x".repeat(80)}`]);
    await page.setViewportSize({ width: 360, height: 720 });
    for (const view of [
      "overview",
      "metrics",
      "metrics?kind=gauge",
      "metrics?metric=page.views",
      "cardinality",
      "tail?match=tail",
      "explain",
      "outputs",
      "help",
    ]) {
      await open(view);
      await until("the page is live", async () => (await text(".state")) === "live");
      if (view === "cardinality") {
        await page.locator("tr:has-text('wide.metric') button").click();
        await page.locator(".examples li >> nth=0").waitFor();
      }
      let client = 0;
      // Charts follow the window one frame later.
      await until(`${view} is as wide as the window`, async () => {
        const root = await page.evaluate(() => {
          const { scrollWidth, clientWidth } = document.documentElement;
          return { scrollWidth, clientWidth };
        });
        client = root.clientWidth;
        return root.scrollWidth <= client;
      });
      const current = await page.locator("nav [aria-current]").boundingBox();
      assert.ok(current.x >= 0 && current.x + current.width <= client, `the navigation shows ${view}`);
    }
    // However large the numbers of an output are.
    await page.route("**/api/v1/status*", async (route) => {
      const response = await route.fetch();
      const json = await response.json();
      const points = {
        delivered: 12_345_678_901,
        pending: 987_654_321,
        dropped: { queue_full: 123_456_789 },
      };
      for (const output of json.outputs) Object.assign(output.points, points);
      await route.fulfill({ response, json });
    });
    await open("help");
    await open("outputs");
    await page.locator("td:has-text('12.3G')").waitFor();
    const table = page.locator("[aria-label='states of the outputs']");
    const hidden = await table.evaluate((box) => box.scrollWidth - box.clientWidth);
    assert.ok(hidden <= 0, `${hidden} pixels of the outputs are cut`);
    await page.unroute("**/api/v1/status*");
    await page.setViewportSize({ width: 1200, height: 800 });
  });

  await test("a hundred thousand metrics are searched and scrolled, and a screen of them is drawn", async () => {
    clearInterval(traffic);
    await sendNames(100_000);
    await open("metrics");
    const shown = (pattern) => async () => pattern.test(await text(".bar [role=status]"));
    await until("all are counted", shown(/^100.0\d\d metrics/));
    await until("rows are there", async () => (await page.locator(".rows .row").count()) > 20);
    const now = await threadTime();
    const costs = [];
    // However many there are, the page has the rows of a screen, and some around it. What a step costs is printed: the CPU time
    // of the page's thread until the next one, of which the median counts, because books and answers fall into some steps.
    const step = async (what, act) => {
      const before = now();
      await act();
      await new Promise((done) => setTimeout(done, 250));
      costs.push({ what, cpu: now() - before });
      const rows = await page.locator(".rows .row").count();
      assert.ok(rows <= 100, `${what}: ${rows} rows`);
    };
    for (let at = 0; at < 12; at += 1) await step("nothing", async () => {});
    await page.focus("input[type=search]");
    for (const letter of "service.9999") await step("type", () => page.keyboard.press(letter));
    await until("eleven are left", shown(/^11 metrics/));
    for (let at = 0; at < 12; at += 1) await step("delete", () => page.keyboard.press("Backspace"));
    await until("all are back", shown(/^100.0\d\d metrics/));
    await page.hover(".rows");
    for (let turn = 0; turn < 20; turn += 1) await step("scroll", () => page.mouse.wheel(0, 5000));
    await until("the rows scrolled to are there", rowsInView(page));
    await step("to the end", () =>
      page.evaluate(() => {
        document.querySelector(".rows").scrollTop = 1e9;
      }),
    );
    // Behind all of them in the order of names comes only what is not one of them.
    await until("the last rows are there", async () => (await text(".rows")).includes("service.99999"));
    await page.focus(".rows");
    await step("kind", () => page.keyboard.press("k"));
    await until("counters are left", shown(/^100.0\d\d metrics/));
    await step("kind", () => page.keyboard.press("k"));
    await until("gauges are left", shown(/^\d metrics/));
    assert.match(await text("fieldset[aria-label=kinds]"), /counters\s+100.0\d\d/);
    await step("kind", () => page.locator("fieldset button:has-text('all')").click());
    await until("all are back", shown(/^100.0\d\d metrics/));
    const sorting = page.locator("label:has-text('Sort by') select");
    await step("sort", () => sorting.selectOption("growth"));
    await until("the list begins again", rowsInView(page));
    const medianOf = (what) => {
      const times = costs.filter((cost) => cost.what === what).map((cost) => cost.cpu);
      return times.sort((a, b) => a - b)[Math.floor(times.length / 2)];
    };
    // Books come and are drawn all the same.
    const idle = medianOf("nothing");
    for (const what of new Set(costs.map((cost) => cost.what))) {
      const median = medianOf(what) - (what === "nothing" ? 0 : idle);
      console.log(`   ${what}: ${median.toFixed(1)} ms of CPU time`);
    }
  });

  await test("the page survives the agent", async () => {
    await open("overview");
    await until("the page is live", async () => (await text(".state")) === "live");
    await agent.stop();
    await until("the page says so", async () => (await text(".state")).includes("does not respond"));
    assert.match(await text("main"), /Messages per second/);
    agent = await startAgent();
    await until("it resumes by itself", async () => (await text(".state")) === "live");
  });

  assert.deepEqual(foreign, [], "requests to elsewhere");
  assert.deepEqual(broken, [], "errors on the page");
} finally {
  clearInterval(traffic);
  agent.kill();
  await browser.close();
  socket.close();
  rmSync(folder, { recursive: true, force: true });
}
console.log(`${done.length} tests passed`);
