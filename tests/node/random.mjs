// Random numbers that are the same everywhere: a failure is found again by its seed.

export class Random {
  #state;
  constructor(seed) { this.#state = seed >>> 0; }

  // mulberry32, in [0, 1).
  next() {
    this.#state = (this.#state + 0x6d2b79f5) >>> 0;
    let t = this.#state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
  }
  below(n) { return Math.floor(this.next() * n); }
  between(low, high) { return low + this.below(high - low + 1); }
  pick(list) { return list[this.below(list.length)]; }
  // A generator of its own, so that what one request draws does not move the others.
  fork() { return new Random(this.below(4294967296)); }

  shuffled(list) {
    const out = [...list];
    for (let i = out.length - 1; i > 0; --i) {
      const j = this.below(i + 1);
      [out[i], out[j]] = [out[j], out[i]];
    }
    return out;
  }
  word() {
    const letters = 'abcdefghijklmnopqrstuvwxyz';
    return Array.from({ length: this.between(3, 10) }, () => this.pick(letters)).join('');
  }
  bytes(length) {
    const out = Buffer.alloc(length);
    for (let i = 0; i < length; ++i) out[i] = this.below(256);
    return out;
  }
}

// Values of every JSON type but one; `integer` and `number` count as one type.
export function ofOtherType(type, r) {
  const values = {
    boolean: [true, false],
    number: [0, 1, -1, 2.5],
    string: ['', '1', 'true', r.word(), 'null'],
    list: [[], [1], [null], [[]]],
    object: [{}, { a: 1 }, { [r.word()]: null }],
  };
  if (type === 'integer') values.number = [0.5, 1.25, -2.5];
  else delete values[type];
  return r.pick(r.pick(Object.values(values)));
}
