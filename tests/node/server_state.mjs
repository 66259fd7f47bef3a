// What a running `fathom serve` says of itself, and what the system says of its process.
import assert from 'node:assert/strict';
import { readFileSync, readdirSync } from 'node:fs';

export const sleep = (ms) => new Promise((resolve) => { setTimeout(resolve, ms); });

export async function until(what, condition, seconds = 30) {
  for (let i = 0; i < seconds * 10; ++i) {
    if (await condition()) return;
    await sleep(100);
  }
  assert.fail(`${what} did not come true within ${seconds} s`);
}

export class ServerState {
  // `pid` as with_server.sh passes it on.
  constructor(root, pid) {
    this.root = root;
    this.pid = pid;
  }

  // Of all series of a name.
  async metric(name) {
    const response = await fetch(`${this.root}/metrics`, { headers: { Connection: 'close' } });
    let sum = 0;
    for (const line of (await response.text()).split('\n')) {
      if (line.startsWith(name)) sum += Number(line.slice(line.lastIndexOf(' ') + 1));
    }
    return sum;
  }

  async isIdle() {
    return (await this.metric('vllm:num_requests_running')) + (await this.metric('vllm:num_requests_waiting')) === 0 &&
      (await this.metric('vllm:kv_cache_usage_perc')) === 0;
  }

  rssMiB() {
    return Number(/VmRSS:\s+(\d+) kB/.exec(readFileSync(`/proc/${this.pid}/status`, 'utf8'))[1]) / 1024;
  }
  numFiles() { return readdirSync(`/proc/${this.pid}/fd`).length; }

  // Every page of the cache that prefixes hold goes back; needs --enable-dev-endpoints.
  async forgetPrefixes() {
    const response = await fetch(`${this.root}/reset_prefix_cache`, { method: 'POST', headers: { Connection: 'close' } });
    assert.equal(response.status, 200);
  }
}
