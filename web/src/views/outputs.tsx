// Each output's counters over time, its queue, and the last error of its backend.

import type { Status } from "../api";
import { Chart } from "../chart";
import { column, firstSecond, type LiveBooks, usePolled, type WantedBooks } from "../data";
import { bytes, count as counted, duration } from "../format";
import { errorText, OutputTable } from "./overview";

export const OUTPUTS_BOOKS: WantedBooks = {
  names: ["weir_output_delivered_total", "weir_output_dropped_total", "weir_output_pending"],
};

export function Outputs({ live }: { live: LiveBooks }) {
  const { data: status, error } = usePolled<Status>("status", {}, 5);
  if (!status) return <p class="quiet">{error ?? "Waiting for the status."}</p>;
  const { books } = live;
  const first = firstSecond(books);
  const times = books.times.slice(first);
  return (
    <>
      <OutputTable status={status} />
      {status.outputs.map((output) => {
        const tags = { output: output.name, kind: output.type === "relay" ? "message" : "point" };
        const of = (name: string) => column(books, name, tags).slice(first);
        const delivered = of("weir_output_delivered_total");
        // It has no series before the first drop.
        const dropped = of("weir_output_dropped_total").map(
          (value, at) => value ?? (delivered[at] === null ? null : 0),
        );
        return (
          <section key={output.name}>
            <h2>
              {output.name} {output.type !== output.name && <span class="quiet">{output.type}</span>}
            </h2>
            {/* Apart: what waits is often a thousand times what moves in a second. */}
            <div class="columns">
              <Chart
                times={times}
                height={180}
                lines={[
                  { label: "delivered/s", values: delivered },
                  { label: "dropped/s", values: dropped },
                ]}
              />
              <Chart
                times={times}
                height={180}
                lines={[{ label: "pending", values: of("weir_output_pending"), colour: 3 }]}
              />
            </div>
            <ul>
              {output.lag_seconds > 0 && (
                <li>the oldest payload has waited {duration(output.lag_seconds)}</li>
              )}
              {output.bytes !== undefined && output.bytes > 0 && (
                <li>
                  {bytes(output.bytes)} in {counted(output.payloads ?? 0, "payloads")}
                </li>
              )}
              {output.last_error && <li class="bad">last error: {errorText(output.last_error)}</li>}
              {Object.entries(output.points.dropped).map(([reason, count]) => (
                <li key={reason} class="bad">
                  {counted(count, "points")} dropped: {reason}
                </li>
              ))}
              {output.notes.map((note) => (
                <li key={note}>{note}</li>
              ))}
            </ul>
          </section>
        );
      })}
    </>
  );
}
