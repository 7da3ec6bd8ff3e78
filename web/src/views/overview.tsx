// Whether anything is lost and why, and the figures of the agent.

import { useRef } from "preact/hooks";
import type { Books, Loss, MemoryShare, Status } from "../api";
import { Chart, Sparkline } from "../chart";
import {
  column,
  firstSecond,
  type LiveBooks,
  last,
  usePolled,
  useSlowly,
  type WantedBooks,
  WINDOW,
} from "../data";
import { bytes, clock, count as counted, duration, exact, number, utc } from "../format";
import { type Counted, divide, remember, risenAt } from "../losses";
import { Scroll, useAmount, Words } from "../words";
import { ClientTable } from "./clients";

function Figure(props: { title: string; value: string; note?: string; values?: (number | null)[] }) {
  return (
    <div class="figure">
      <h3>{props.title}</h3>
      <p class="value">{props.value}</p>
      {props.values && <Sparkline values={props.values} width={160} height={28} />}
      {props.note && <p class="quiet">{props.note}</p>}
    </div>
  );
}

const FIGURES = [
  "weir_messages_received_total",
  "weir_received_bytes_total",
  "process_cpu_seconds_total",
  "process_resident_memory_bytes",
  "weir_contexts",
  "weir_flush_seconds",
];
/** Between two requests for losses that rise. */
const LOSS_SECONDS = 4;
export const OVERVIEW_BOOKS: WantedBooks = { names: FIGURES, losses: true };

export function Overview({ live }: { live: LiveBooks }) {
  const { books } = live;
  // One request for status and losses, and another at once when a loss rises: one that lasts rises in each second.
  const params = { losses: 1, risen: useSlowly(risenAt(books, FIGURES), LOSS_SECONDS) };
  const { data: answer, error } = usePolled<Status>("status", params, 10);
  // That of a merge has other parts, and the page is about to show them.
  const status = answer?.fleet ? undefined : answer;
  const answers = useAnswers(status);
  const messages = column(books, "weir_messages_received_total");
  const received = column(books, "weir_received_bytes_total");
  const cpu = column(books, "process_cpu_seconds_total");
  const resident = column(books, "process_resident_memory_bytes");
  const lost = status?.losses;
  const first = firstSecond(books);
  const seconds = books.times.length - first;
  const listeners = status?.listeners ?? [];
  return (
    <>
      <section aria-label="losses">
        {lost && seconds > 0 ? (
          <LossList lost={lost} books={books} answers={answers} seconds={seconds} />
        ) : (
          <p class="quiet">Waiting for the first second of data.</p>
        )}
        {status?.not_ready && <p class="alarm">Not ready: {status.not_ready}</p>}
        {error && <p class="quiet">{error}</p>}
      </section>
      <section class="figures" aria-label="figures">
        <Figure title="Messages per second" value={number(last(messages))} values={messages} />
        <Figure title="Bytes per second" value={bytes(last(received) ?? 0)} values={received} />
        <Figure
          title="Contexts"
          value={status ? exact(status.contexts.live) : "–"}
          note={status ? `expired: ${exact(status.contexts.expired)}` : undefined}
          values={column(books, "weir_contexts")}
        />
        <Figure
          title="CPU"
          value={`${number(Math.round((last(cpu) ?? 0) * 1000) / 10)} %`}
          note="of one core"
          values={cpu}
        />
        <Figure title="Resident memory" value={bytes(last(resident) ?? 0)} values={resident} />
        <Figure
          title="Last flush"
          value={status ? duration(status.flush.seconds) : "–"}
          note={
            status
              ? `${exact(status.flush.series)} series every ${duration(status.flush.bucket_seconds)}`
              : undefined
          }
          values={column(books, "weir_flush_seconds")}
        />
      </section>
      <section>
        <h2>Messages by listener</h2>
        <Chart
          times={books.times.slice(first)}
          lines={listeners.map((listener) => ({
            label: listener.address,
            values: column(books, "weir_messages_received_total", { listener: listener.address }).slice(
              first,
            ),
          }))}
          format={(value) => (value === null || value === undefined ? "–" : `${number(value)}/s`)}
        />
      </section>
      {status && <ClientTable clients={status.clients.seen} />}
      {status && <Memory status={status} />}
      {status && <OutputTable status={status} />}
      {status && (
        <p class="quiet">
          weir {status.version} on {status.hostname}, started{" "}
          <time title={utc(status.started)}>
            {new Date(status.started * 1000).toLocaleDateString()} {clock(status.started)}
          </time>
        </p>
      )}
    </>
  );
}

/** The agent's answers in the window. */
function useAnswers(status: Status | undefined): Counted[] {
  const kept = useRef<{ of: Status | undefined; answers: Counted[] }>({ of: undefined, answers: [] });
  if (status?.losses && kept.current.of !== status) {
    const now = Math.floor(Date.now() / 1000);
    kept.current = { of: status, answers: remember(kept.current.answers, status.losses, now, WINDOW) };
  }
  return kept.current.answers;
}

function LossList(props: { lost: Loss[]; books: Books; answers: Counted[]; seconds: number }) {
  const { recent, earlier } = divide(props.lost, props.books, props.answers);
  const window = duration(props.seconds);
  return (
    <>
      {recent.length === 0 && <p class="fine">✓ Nothing was lost in the last {window}.</p>}
      {recent.length > 0 && (
        <div class="alarm">
          <h2>✗ Lost, refused or degraded in the last {window}</h2>
          <ul>
            {recent.map((loss) => (
              <LossItem key={lossKey(loss)} loss={loss} count={loss.recent} />
            ))}
          </ul>
        </div>
      )}
      {earlier.length > 0 && (
        <details class="earlier">
          <summary>
            {earlier.length === 1 ? "One earlier loss" : `${earlier.length} earlier losses`} since the start
          </summary>
          <ul>
            {earlier.map((loss) => (
              <LossItem key={lossKey(loss)} loss={loss} count={loss.count} />
            ))}
          </ul>
        </details>
      )}
    </>
  );
}

export function lossKey(loss: Loss): string {
  return `${loss.series} ${loss.labels.join(" ")}`;
}

export function LossItem({ loss, count }: { loss: Loss; count: number }) {
  return (
    <li>
      <b>{counted(count, loss.unit)}</b>
      {loss.place && ` at ${loss.place}`}: <Words text={loss.meaning} /> <Words text={loss.remedy} />
    </li>
  );
}

/** The history is full by design: its oldest minutes make room. */
const isFullByDesign = (share: MemoryShare) => share.name === "history";

function Memory({ status }: { status: Status }) {
  const { budget, used, shares } = status.memory;
  const fullness = (share: MemoryShare) => Math.max(share.fullest, share.used / share.bytes);
  const shown = shares.filter((share) => share.bytes > 0).sort((a, b) => fullness(b) - fullness(a));
  return (
    <section>
      <h2>
        Memory: {bytes(used)} of {bytes(budget)}
      </h2>
      <Scroll label="shares of memory">
        <table>
          <thead>
            <tr>
              <th scope="col">share</th>
              <th scope="col" class="number">
                used
              </th>
              <th scope="col" class="number">
                of
              </th>
              <th scope="col" class="number">
                fullest part
              </th>
              <th scope="col" class="wide">
                <span class="hidden">how full it is, as a bar</span>
              </th>
              <th scope="col" class="when">
                when it is full
              </th>
            </tr>
          </thead>
          <tbody>
            {shown.map((share) => {
              const full = fullness(share);
              const isHigh = full >= 0.9 && !isFullByDesign(share);
              return (
                <tr key={share.name}>
                  <th scope="row">{share.name.replaceAll("_", " ")}</th>
                  <td class="number">{bytes(share.used)}</td>
                  <td class="number">{bytes(share.bytes)}</td>
                  <td class={isHigh ? "number bad" : "number"}>{`${Math.round(full * 100)} %`}</td>
                  <td class="wide">
                    <meter
                      value={Math.min(full, 1)}
                      low={isFullByDesign(share) ? 1 : 0.7}
                      high={isFullByDesign(share) ? 1 : 0.9}
                      optimum={0}
                      aria-label={share.name}
                    />
                  </td>
                  <td class="quiet when">
                    <Words text={share.when_full} />
                  </td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

export function OutputTable({ status }: { status: Status }) {
  const amount = useAmount();
  return (
    <section>
      <h2>Outputs</h2>
      <Scroll label="states of the outputs">
        <table>
          <thead>
            <tr>
              <th scope="col">output</th>
              <th scope="col">state</th>
              <th scope="col" class="number">
                delivered
              </th>
              <th scope="col" class="number">
                pending
              </th>
              <th scope="col" class="number">
                dropped
              </th>
              <th scope="col" class="number when">
                retries
              </th>
              <th scope="col" class="when">
                last error
              </th>
            </tr>
          </thead>
          <tbody>
            {status.outputs.map((output) => {
              const counts = output.type === "relay" ? output.messages : output.points;
              const dropped = Object.values(counts.dropped).reduce((sum, count) => sum + count, 0);
              return (
                <tr key={output.name}>
                  <th scope="row">{output.name}</th>
                  <td class={output.healthy ? "good" : "bad"}>
                    {output.healthy ? "✓ healthy" : "✗ failing"}
                  </td>
                  <td class="number">{amount(counts.delivered)}</td>
                  <td class="number">{amount(counts.pending)}</td>
                  <td class={dropped > 0 ? "number bad" : "number"}>{amount(dropped)}</td>
                  <td class="number when">{exact(output.retries ?? 0)}</td>
                  <td class="when">{errorText(output.last_error)}</td>
                </tr>
              );
            })}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

export function errorText(error: Status["outputs"][number]["last_error"]): string {
  if (!error) return "";
  return typeof error === "string" ? error : (error.message ?? JSON.stringify(error));
}
