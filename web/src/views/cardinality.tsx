// The metrics, tag keys and origins with the most contexts, and a rule that limits a metric.

import { useEffect, useRef, useState } from "preact/hooks";
import type { ContextReport, Trial } from "../api";
import { usePolled } from "../data";
import { count, duration, exact, number } from "../format";
import { write } from "../route";
import { Dotted, Scroll } from "../words";

export function Cardinality({ flushes }: { flushes: number }) {
  const { data, error } = usePolled<ContextReport>("contexts", { top: 50 }, 5, flushes);
  const [chosen, setChosen] = useState<string | undefined>();
  if (!data) return <p class="quiet">{error ?? "Waiting for the first flush."}</p>;
  if (data.metrics_by_contexts.length === 0)
    return (
      <p class="quiet">
        No metric has a context yet. Send one: <code>weir send 'page.views:1|c|#user:me'</code>
      </p>
    );
  const most = Math.max(1, ...data.metrics_by_contexts.map((row) => row.contexts));
  return (
    <>
      <p>
        {count(data.contexts_live, "contexts")} of {count(data.metrics_live, "metrics")} with{" "}
        {count(data.tag_keys_live, "tag keys")}. Growth covers the last {duration(data.growth_seconds)}.
      </p>
      {data.limited.length > 0 && (
        <section class="alarm">
          <h2>Limited in the last bucket</h2>
          <ul>
            {data.limited.map((row) => (
              <li key={row.metric}>
                <b>{row.metric}</b>: {count(row.samples, "samples")} without a context of their own (
                {row.reason}){row.tag_key && `; ${row.tag_key} has about ${count(row.tag_values, "values")}`}
                {row.origin && `; from ${row.origin}`}
              </li>
            ))}
          </ul>
        </section>
      )}
      <section>
        <h2>Metrics</h2>
        <Scroll label="metrics by contexts">
          <table>
            <thead>
              <tr>
                <th scope="col">metric</th>
                <th scope="col" class="number">
                  contexts
                </th>
                <th scope="col" class="number">
                  growth
                </th>
                <th scope="col" class="number samples">
                  samples/s
                </th>
                <th scope="col" class="wide">
                  share
                </th>
                <th scope="col">try a rule</th>
              </tr>
            </thead>
            <tbody>
              {data.metrics_by_contexts.map((row) => (
                <tr key={row.metric}>
                  <th scope="row">
                    <a href={write("metrics", { metric: row.metric })}>
                      <Dotted name={row.metric} />
                    </a>
                  </th>
                  <td class="number">{exact(row.contexts)}</td>
                  <td class="number">{signed(row.growth)}</td>
                  <td class="number samples">{number(row.samples_per_second)}</td>
                  <td class="wide">
                    <meter value={row.contexts} max={most} aria-label={`contexts of ${row.metric}`} />
                  </td>
                  <td>
                    <button type="button" onClick={() => setChosen(row.metric)}>
                      rule
                    </button>
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </Scroll>
      </section>
      {chosen && <Rule metric={chosen} keys={data.tag_keys.map((key) => key.key)} />}
      <section class="columns">
        <CountTable
          title="Tag keys"
          head="values"
          rows={data.tag_keys.map((row) => [row.key || "(no key)", row.values, row.growth])}
        />
        <CountTable
          title="Origins"
          head="contexts"
          rows={data.origins.map((row) => [row.origin, row.contexts, undefined])}
        />
      </section>
    </>
  );
}

function signed(growth: number): string {
  return growth > 0 ? `+${exact(growth)}` : exact(growth);
}

function CountTable(props: { title: string; head: string; rows: [string, number, number | undefined][] }) {
  const hasGrowth = props.rows.some(([, , growth]) => growth !== undefined);
  return (
    <div>
      <h2>{props.title}</h2>
      <table>
        <thead>
          <tr>
            <th scope="col">name</th>
            <th scope="col" class="number">
              {props.head}
            </th>
            {hasGrowth && (
              <th scope="col" class="number">
                growth
              </th>
            )}
          </tr>
        </thead>
        <tbody>
          {props.rows.map(([name, amount, growth]) => (
            <tr key={name}>
              <th scope="row">{name}</th>
              <td class="number">{exact(amount)}</td>
              {growth !== undefined && <td class="number">{signed(growth)}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** A rule in the syntax of the configuration. Names are quoted: they can contain any character. */
export function rule(metric: string, without: string): string {
  const name = JSON.stringify(without ? `${metric} without ${without}` : `without ${metric}`);
  const what = without ? `exclude_tags: [${JSON.stringify(without)}]` : "drop: true";
  return `rules:\n  - name: ${name}\n    match: ${JSON.stringify(metric)}\n    match_type: exact\n    ${what}\n`;
}

function Rule({ metric, keys }: { metric: string; keys: string[] }) {
  const [without, setWithout] = useState("");
  const text = rule(metric, without);
  const { data: trial, error } = usePolled<Trial>("try", { rules: text }, 0);
  const heading = useRef<HTMLHeadingElement>(null);
  const [copied, setCopied] = useState("");
  const copy = () => navigator.clipboard?.writeText(text).then(() => setCopied(text));
  // It is below a long list: a click there must show what it did.
  useEffect(() => {
    heading.current?.focus({ preventScroll: true });
    heading.current?.scrollIntoView({ block: "start" });
  }, [metric]);
  return (
    <section>
      <h2 ref={heading} tabIndex={-1}>
        A rule for {metric}
      </h2>
      <div class="bar">
        <label>
          Leave out the tag{" "}
          <select value={without} onChange={(event) => setWithout((event.target as HTMLSelectElement).value)}>
            <option value="">(drop the metric)</option>
            {keys.filter(Boolean).map((key) => (
              <option key={key}>{key}</option>
            ))}
          </select>
        </label>
        <button type="button" onClick={copy}>
          {copied === text ? "copied" : "copy"}
        </button>
      </div>
      <pre>{text}</pre>
      {error && <p class="alarm">{error}</p>}
      {trial && <TrialResult trial={trial} />}
      <p class="quiet">
        The rule is not active yet. Add it to weir.yaml and reload: kill -HUP, or systemctl reload weir.
      </p>
    </section>
  );
}

function TrialResult({ trial }: { trial: Trial }) {
  const removed = trial.series_now - trial.series_then;
  const share = trial.series_now > 0 ? `, ${number((100 * removed) / trial.series_now)} %` : "";
  return (
    <div role="status">
      <p>
        <b>
          It would remove {exact(removed)} of {exact(trial.series_now)} series
        </b>{" "}
        of the last 5 min{share}: it changes {exact(trial.changed)} series and drops {exact(trial.dropped)} of
        them.
        {trial.incomplete && " weir had no time to examine all series."}
      </p>
      <ul class="examples">
        {trial.examples.map((example) => (
          <li key={example.from}>
            {example.from} → {example.to ?? "(dropped)"}
          </li>
        ))}
      </ul>
    </div>
  );
}
