// Sentences of the agent, in which back-ticks mark settings and commands; and what views have in common.

import { type ComponentChildren, Fragment } from "preact";
import { useMedia } from "./chart";
import { exact, number } from "./format";

export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part))}</>;
}

/** Wider than a narrow window: it scrolls, by keys too. */
export function Scroll(props: { label: string; children: ComponentChildren }) {
  return (
    <section class="scroll" tabIndex={0} aria-label={props.label}>
      {props.children}
    </section>
  );
}

/** A name that is too long for its line breaks behind a dot, if it has one there. */
export function Dotted({ name }: { name: string }) {
  return (
    <>
      {name.split(/(?<=\.)/).map((part, at) => (
        <Fragment key={at}>
          {part}
          <wbr />
        </Fragment>
      ))}
    </>
  );
}

/** For tables of large numbers: where the window is narrow, all digits of one would be cut, and what is left is a smaller number. */
export function useAmount(): (value: number) => string {
  return useMedia("(max-width: 420px)") ? number : exact;
}

/** The series of a metric at each output. */
export function OutputNames({ outputs }: { outputs: { output: string; series: string[] }[] }) {
  return (
    <Scroll label="names at the outputs">
      <table>
        <tbody>
          {outputs.map(({ output, series }) => (
            <tr key={output}>
              <th scope="row">{output}</th>
              <td>
                {series.map((one) => (
                  <div key={one}>
                    <code>{one}</code>
                  </div>
                ))}
                {series.length === 0 && "drops it"}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </Scroll>
  );
}
