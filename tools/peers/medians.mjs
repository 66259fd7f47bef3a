// Medians and ratios of a side-by-side run (bench/compare_llama.sh).
//
//   node medians.mjs RUNS.jsonl
//
// A line per run: {"program": "fathom" | "llama.cpp", "tokens", "prefill", "decode"} with speeds in
// tokens per second; fathom's also has "read_limit_gb_per_s" and "share_of_read".
import {readFileSync} from "node:fs";

const runs = readFileSync(process.argv[2], "utf8").trim().split("\n").map((line) => JSON.parse(line));

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const half = sorted.length >> 1;
  return sorted.length % 2 === 1 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
}
const text = (values) => `${median(values).toFixed(1)} (${Math.min(...values).toFixed(1)} to ${Math.max(...values).toFixed(1)})`;

const rows = [["tokens", "phase", "fathom", "llama.cpp", "ratio of medians", "fathom's share of read"]];
for (const tokens of [...new Set(runs.map((run) => run.tokens))].sort((a, b) => a - b)) {
  const of = (program, key) => runs.filter((run) => run.program === program && run.tokens === tokens).map((run) => run[key]);
  for (const phase of ["prefill", "decode"]) {
    const ours = of("fathom", phase), theirs = of("llama.cpp", phase);
    const share = phase === "decode" ? median(of("fathom", "share_of_read")).toFixed(2) : "";
    rows.push([String(tokens), phase, text(ours), text(theirs), (median(ours) / median(theirs)).toFixed(2), share]);
  }
}
const widths = rows[0].map((_, column) => Math.max(...rows.map((row) => row[column].length)));
for (const row of rows) console.log(row.map((cell, column) => cell.padEnd(widths[column])).join("  ").trimEnd());
const limits = runs.filter((run) => run.program === "fathom").map((run) => run.read_limit_gb_per_s);
console.log(`\nTokens per second: median (lowest to highest) of ${runs.length / 2 / new Set(runs.map((run) => run.tokens)).size} rounds.`);
console.log(`Read bandwidth beside fathom's runs, GB/s: ${text(limits)}.`);
