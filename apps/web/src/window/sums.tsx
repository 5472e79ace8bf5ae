// A prompt's regions as figures that add up to what counts against the budget.
import { tokens } from "../format";
import { REGIONS, type Regions } from "../types";
import { REGION_HELP, REGION_NAMES, Swatch } from "./regions";

interface Props {
  regions: Regions;
  /** What counts against the input budget. */
  counted: number;
  overheadReserve: number;
}

/** Regions sum to the request; what the reserve pays and what the provider's own counts correct lead to `counted`. */
export function RegionSums({ regions, counted, overheadReserve }: Props) {
  const wire = REGIONS.reduce((sum, region) => sum + regions[region], 0);
  const reserved = Math.min(overheadReserve, regions.framing + regions.tools);
  const corrected = counted + reserved - wire;
  return (
    <table class="sums">
      <caption class="unseen">Tokens by region</caption>
      <tbody>
        {REGIONS.filter((region) => regions[region] > 0).map((region) => (
          <tr key={region} title={REGION_HELP[region]}>
            <th scope="row">
              <Swatch region={region} /> {REGION_NAMES[region]}
            </th>
            <td class="number">{tokens(regions[region])}</td>
          </tr>
        ))}
        <tr class="total" title="All tokens that are sent">
          <th scope="row">Whole request</th>
          <td class="number">{tokens(wire)}</td>
        </tr>
        {reserved > 0 && (
          <tr title={`Framing and tools up to ${tokens(overheadReserve)} tokens have a reserve of their own`}>
            <th scope="row">From the overhead reserve</th>
            <td class="number">−{tokens(reserved)}</td>
          </tr>
        )}
        {corrected !== 0 && (
          <tr title="Estimates are corrected by what the provider counted before">
            <th scope="row">Correction of the estimate</th>
            <td class="number">
              {corrected > 0 ? "+" : "−"}
              {tokens(Math.abs(corrected))}
            </td>
          </tr>
        )}
        <tr class="total">
          <th scope="row">Counted against the budget</th>
          <td class="number">{tokens(counted)}</td>
        </tr>
      </tbody>
    </table>
  );
}
