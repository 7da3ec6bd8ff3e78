// The clients' own telemetry.

import type { ClientRow } from "../api";
import { clock, exact, utc } from "../format";
import { Scroll, useAmount } from "../words";

/** The agent lists the clients with the most losses first. */
const ROWS_MAX = 20;

const COLUMNS = ["packets sent", "dropped", "queue full", "write failed"];

export function ClientTable({ clients }: { clients: ClientRow[] }) {
  if (clients.length === 0) return null;
  return (
    <section aria-label="clients">
      <h2>Clients, from their own telemetry</h2>
      <Scroll label="what clients report">
        <table>
          <thead>
            <tr>
              <th scope="col">client</th>
              {COLUMNS.map((title) => (
                <th key={title} scope="col" class="number">
                  {title}
                </th>
              ))}
              <th scope="col">transport</th>
              <th scope="col">origin</th>
              <th scope="col">last report</th>
            </tr>
          </thead>
          <tbody>
            {clients.slice(0, ROWS_MAX).map((client) => (
              <Row
                key={`${client.client}|${client.version}|${client.transport}|${client.origin}`}
                {...client}
              />
            ))}
          </tbody>
        </table>
      </Scroll>
      {clients.length > ROWS_MAX && <p class="quiet">and {exact(clients.length - ROWS_MAX)} more</p>}
    </section>
  );
}

function Row(client: ClientRow) {
  const amount = useAmount();
  const dropped = [client.packets_dropped, client.packets_dropped_queue, client.packets_dropped_writer];
  return (
    <tr>
      <th scope="row">
        {client.client} {client.version}
      </th>
      <td class="number">{amount(client.packets_sent)}</td>
      {dropped.map((count, column) => (
        <td key={COLUMNS[column + 1]} class={count > 0 ? "number bad" : "number"}>
          {amount(count)}
        </td>
      ))}
      <td>{client.transport}</td>
      <td>{client.origin}</td>
      <td>
        <time title={utc(client.last_seen)}>{clock(client.last_seen)}</time>
      </td>
    </tr>
  );
}
