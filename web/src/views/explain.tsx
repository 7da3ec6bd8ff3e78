// Explains a pasted message.

import { useLayoutEffect, useState } from "preact/hooks";
import type { Explanation } from "../api";
import { usePolled } from "../data";
import { byteRange } from "../format";
import { go, write } from "../route";
import { OutputNames, Words } from "../words";

export function Explain({ params }: { params: URLSearchParams }) {
  const [line, setLine] = useState(params.get("line") ?? "");
  const requested = params.get("line") ?? "";
  // Before the next event: a later effect would undo what was typed meanwhile.
  useLayoutEffect(() => setLine(requested), [requested]);
  const { data, error } = usePolled<Explanation>(requested ? "explain" : undefined, { line: requested }, 0);
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          go({ line });
        }}
      >
        <label class="grow">
          Message{" "}
          <input
            value={line}
            placeholder="page.views:1|c|#user:me"
            onInput={(event) => setLine((event.target as HTMLInputElement).value)}
          />
        </label>
        <button type="submit">explain</button>
      </form>
      {error && <p class="alarm">{error}</p>}
      {requested && data && <Result explanation={data} />}
    </>
  );
}

function Rejection({ explanation }: { explanation: Explanation }) {
  const { rejected, bad, meaning, line } = explanation;
  return (
    <div class="alarm">
      <p>
        ✗ Rejected: {rejected}
        {bad && `, ${byteRange(bad.offset, bad.length)} of ${new TextEncoder().encode(line).length}`}
      </p>
      {bad && (
        <code class="tail">
          {bad.before}
          <mark>{bad.bytes || "▁"}</mark>
          {bad.after}
        </code>
      )}
      {meaning && (
        <p>
          <Words text={meaning} />
        </p>
      )}
    </div>
  );
}

function Result({ explanation }: { explanation: Explanation }) {
  const { rejected, note, context, origin, steps, listener, others, outputs } = explanation;
  const drop = steps.find((step) => step.dropped);
  return (
    <section>
      {rejected && <Rejection explanation={explanation} />}
      {drop && <p role="status">{`– Dropped: ${drop.stage}, ${drop.why}`}</p>}
      {!rejected && !drop && <p class="fine">✓ Accepted</p>}
      {note && <p class="quiet">{note}</p>}
      {others.length > 0 && (
        <p class="quiet">
          This is how {listener} parses it. These listeners parse messages differently: {others.join(", ")}
        </p>
      )}
      {context && (
        <table>
          <tbody>
            <tr>
              <th scope="row">name</th>
              <td>
                {outputs ? (
                  <a href={write("metrics", { metric: context.name })}>{context.name}</a>
                ) : (
                  context.name
                )}
              </td>
            </tr>
            <tr>
              <th scope="row">type</th>
              <td>{context.type}</td>
            </tr>
            <tr>
              <th scope="row">host</th>
              <td>{context.host}</td>
            </tr>
            <tr>
              <th scope="row">tags</th>
              <td>{context.tags.join(", ") || "none"}</td>
            </tr>
            {origin?.container && (
              <tr>
                <th scope="row">container</th>
                <td>{origin.container}</td>
              </tr>
            )}
          </tbody>
        </table>
      )}
      {outputs && (
        <>
          <h2>At the outputs</h2>
          <OutputNames outputs={outputs} />
        </>
      )}
      {steps.length > 0 && (
        <>
          <h2>Steps</h2>
          <ol>
            {steps.map((step, at) => (
              <li key={String(at)}>
                <b>{step.stage}</b>
                {step.dropped && " drops it"}: {step.why}
                {step.renamed_to && `; the name is now ${step.renamed_to}`}
                {step.added.length > 0 && `; adds ${step.added.join(", ")}`}
                {step.removed.length > 0 && `; removes ${step.removed.join(", ")}`}
              </li>
            ))}
          </ol>
        </>
      )}
    </section>
  );
}
