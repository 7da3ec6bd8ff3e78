// Keys, and hints on the charts.

import { KEYS } from "../keys";

export function Help() {
  return (
    <>
      <h1>Help</h1>
      <h2>Keys</h2>
      <table>
        <tbody>
          {KEYS.map(([key, meaning]) => (
            <tr key={key}>
              <th scope="row">
                <kbd>{key}</kbd>
              </th>
              <td>{meaning}</td>
            </tr>
          ))}
        </tbody>
      </table>
      <h2>Charts</h2>
      <ul>
        <li>Drag over a chart to zoom in. Back, a double click or the key u undoes it.</li>
        <li>
          A chart has up to six metrics. Each has a function and a filter of its own; groups, window and scale
          are those of all.
        </li>
        <li>
          A filter has words such as <code>env:prod</code>, <code>status:5*</code> and, for exclusion,{" "}
          <code>!env:dev</code>. Of several words with one key, one must fit; all excluded ones must not.
        </li>
        <li>
          A formula combines two metrics, group by group: for example A / B of errors and requests by service.
        </li>
        <li>
          In the legend, a name hides or shows its line, “only” shows nothing else, and a column head sorts.
        </li>
        <li>
          Percentiles are those of all samples of a group, also over contexts and time. They are within 1.6 %.
        </li>
        <li>The address of the page has all of it: a link shows the same to a colleague.</li>
      </ul>
    </>
  );
}
