// Sentences of the agent, in which back-ticks mark settings and commands.

export function Words({ text }: { text: string }) {
  return <>{text.split("`").map((part, at) => (at % 2 === 1 ? <code key={at}>{part}</code> : part))}</>;
}
