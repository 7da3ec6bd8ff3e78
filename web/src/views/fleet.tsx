// A merge and its fleet: agents, lag, the ledger, what was quarantined, and how far each output is.

import type { Agent, Fleet as Of, Status } from "../api";
import { clock, count, duration, exact, unitOf } from "../format";
import { Scroll } from "../words";
import { LossItem, lossKey, OutputTable } from "./overview";

/** A narrow window shows the first ones. */
const LEDGER = ["published", "merged", "open", "missing", "lost", "quarantined", "late"] as const;

export function Fleet({ status, fleet }: { status: Status; fleet: Of }) {
  const quarantined = fleet.partitions.reduce((sum, row) => sum + row.quarantined, 0);
  const figures: [string, string, string][] = [
    fleet.closed_buckets === 0
      ? ["Agents", exact(fleet.agents_known), "known; no bucket has closed yet"]
      : [
          "Agents",
          `${exact(fleet.agents_seen)} of ${exact(fleet.agents_expected)}`,
          "seen in the last closed bucket",
        ],
    ["Lag", count(fleet.lag_records, "records"), duration(fleet.lag_seconds)],
    ["Buckets closed", exact(fleet.closed_buckets), `open: ${exact(fleet.open_buckets)}`],
    ["Late", exact(fleet.records.late), `${unitOf(fleet.records.late, "records")}, in corrections`],
    ["Duplicates", exact(fleet.records.repeated), `${unitOf(fleet.records.repeated, "records")}, ignored`],
    ["Quarantined", exact(quarantined), unitOf(quarantined, "records")],
  ];
  return (
    <>
      <section aria-label="losses">
        {status.losses && status.losses.length > 0 && (
          <div class="alarm">
            <h2>✗ Lost, refused or degraded since the start</h2>
            <ul>
              {status.losses.map((loss) => (
                <LossItem key={lossKey(loss)} loss={loss} count={loss.count} />
              ))}
            </ul>
          </div>
        )}
        {status.losses?.length === 0 && <p class="fine">✓ Nothing was lost since the start.</p>}
        {status.not_ready && <p class="alarm">Not ready: {status.not_ready}</p>}
        {fleet.log_error && <p class="alarm">{fleet.log_error}</p>}
        {!fleet.sends && <p class="quiet">Another process owns the partitions; this one waits.</p>}
      </section>
      <section class="figures" aria-label="figures">
        {figures.map(([title, value, note]) => (
          <div class="figure" key={title}>
            <h3>{title}</h3>
            <p class="value">{value}</p>
            <p class="quiet">{note}</p>
          </div>
        ))}
      </section>
      <Ledger fleet={fleet} />
      <Sent fleet={fleet} />
      <OutputTable status={status} />
      {fleet.quarantine.length > 0 && (
        <section>
          <h2>Quarantine</h2>
          <Scroll label="quarantine">
            <table>
              <thead>
                <tr>
                  <th scope="col">agent</th>
                  <th scope="col">reason</th>
                  <NumberHead text="partition" />
                  <NumberHead text="offset" />
                </tr>
              </thead>
              <tbody>
                {[...fleet.quarantine].reverse().map((row) => (
                  <tr key={`${row.partition}/${row.offset}`}>
                    <th scope="row" title={row.agent ?? undefined}>
                      {row.host || row.agent || "unknown"}
                    </th>
                    <td>{row.reason.replaceAll("_", " ")}</td>
                    <td class="number">{row.partition}</td>
                    <td class="number">{exact(row.offset)}</td>
                  </tr>
                ))}
              </tbody>
            </table>
          </Scroll>
        </section>
      )}
    </>
  );
}

/** Series states: what was published is in one of the other columns. */
function Ledger({ fleet }: { fleet: Of }) {
  const row = (name: string, states: Of["states"], note: string, id = name) => (
    <tr key={id}>
      <th scope="row" title={id}>
        {name}
        {note && <span class="quiet"> {note}</span>}
      </th>
      {LEDGER.map((column) => (
        <td
          key={column}
          class={
            states[column] > 0 && ["quarantined", "missing", "lost"].includes(column)
              ? "number bad"
              : "number"
          }
        >
          {exact(states[column])}
        </td>
      ))}
    </tr>
  );
  return (
    <section>
      <h2>Ledger of series states</h2>
      <Scroll label="ledger of series states">
        <table>
          <thead>
            <tr>
              <th scope="col">agent</th>
              {LEDGER.map((column) => (
                <NumberHead key={column} text={column} />
              ))}
            </tr>
          </thead>
          <tbody>
            {row("all", fleet.states, count(fleet.agents_known, "agents"))}
            {fleet.agents
              .slice(0, 20)
              .map((agent) => row(agent.host || agent.agent, agent, noteOf(agent), agent.agent))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

function noteOf(agent: Agent): string {
  if (agent.shared_id > 0) return "two agents have this id";
  return agent.is_missing ? "missing" : "";
}

function Sent({ fleet }: { fleet: Of }) {
  return (
    <section>
      <h2>Delivery by output</h2>
      <Scroll label="delivery by output">
        <table>
          <thead>
            <tr>
              <th scope="col">output</th>
              <NumberHead text="behind" />
              <NumberHead text="newest ended" />
              <NumberHead text="buckets" />
              <NumberHead text="repeated" />
              <NumberHead text="corrected" />
              <NumberHead text="not corrected" />
            </tr>
          </thead>
          <tbody>
            {fleet.sent.map((row) => (
              <tr key={row.output}>
                <th scope="row">
                  {row.output}
                  {row.waits && <span class="quiet"> is waited for</span>}
                </th>
                <td class={row.waits && row.lag_seconds > 60 ? "number bad" : "number"}>
                  {row.newest === null ? "–" : duration(row.lag_seconds)}
                </td>
                <td class="number">{row.newest === null ? "none yet" : clock(row.newest)}</td>
                <td class="number">{exact(row.buckets)}</td>
                <td class="number">{exact(row.repeated)}</td>
                <td class="number">{exact(row.corrected)}</td>
                <td class={row.not_corrected > 0 ? "number bad" : "number"}>{exact(row.not_corrected)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      </Scroll>
    </section>
  );
}

function NumberHead({ text }: { text: string }) {
  return (
    <th scope="col" class="number">
      {text}
    </th>
  );
}
