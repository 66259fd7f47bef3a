import { ofOtherType } from '../random.mjs';

// A kind of bad request: how to make one, and what the server has to say to it.
//
// {
//   name         unique
//   status       the one status that the API's description has for it; a list where the request
//                holds several mistakes and which is met first is not described
//   param, code  of the error body (OpenAI's form); undefined: not described, null: null
//   make(r)      a request, from a random generator: {path, body, method, headers} for one over a
//                connection that is kept; {wire, ...} for bytes on a socket (wire_kinds.mjs)
//   most         of one run, for what takes long (default: any number)
// }

// Text in place of a JSON value, for what JSON.stringify does not write.
export class Raw {
  constructor(text) { this.text = text; }
}

export function toJson(value) {
  if (value instanceof Raw) return value.text;
  if (Array.isArray(value)) return `[${value.map(toJson).join(',')}]`;
  if (value === null || typeof value !== 'object') return JSON.stringify(value);
  const members = Object.entries(value).filter(([, member]) => member !== undefined);
  return `{${members.map(([key, member]) => `${JSON.stringify(key)}:${toJson(member)}`).join(',')}}`;
}

// Kinds of one route: `base(r)` is a good body, `change(body, r)` breaks it in place, or returns a
// string or Buffer to send instead.
export function kindsOf(path, base) {
  return (name, status, param, change, more = {}) => ({
    name: `${path} ${name}`, status, param, ...more,
    make(r) {
      const body = base(r);
      const changed = change(body, r);
      const replaced = typeof changed === 'string' || Buffer.isBuffer(changed);
      return { path, body: replaced ? changed : toJson(body) };
    },
  });
}

// A value for one field; `param` is the field unless told otherwise.
export function fieldKind(kind, field, what, value, status = 400, param = field) {
  return kind(`${field}: ${what}`, status, param, (body, r) => { body[field] = value(r); });
}

// Every way in which a field of a JSON type and range can be wrong.
export function fieldKinds(kind, { name, type, low, high, sent = name }) {
  const kinds = [fieldKind(kind, sent, 'wrong type', (r) => ofOtherType(type, r), 400, name)];
  if (low !== undefined) kinds.push(fieldKind(kind, sent, 'too small', (r) => low(r), 400, name));
  if (high !== undefined) kinds.push(fieldKind(kind, sent, 'too large', (r) => high(r), 400, name));
  if (type === 'integer' || type === 'number') {
    kinds.push(fieldKind(kind, sent, 'hundreds of digits',
      (r) => new Raw(`${r.pick(['', '-'])}${'9'.repeat(r.between(310, 900))}`), 400, name));
  }
  return kinds;
}
