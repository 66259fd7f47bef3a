// What is wrong with a request before anybody looks at its fields: bodies that are no JSON, routes,
// methods, keys, content types. Any route that takes a body has to answer alike.
import { Raw, toJson } from './kind.mjs';

const postRoutes = ['/v1/chat/completions', '/v1/completions', '/v1/messages', '/v1/messages/count_tokens',
  '/v1/responses', '/tokenize', '/detokenize'];
const good = (r) => ({ model: 'fathom-nano', max_tokens: 4, messages: [{ role: 'user', content: `Say ${r.word()}.` }] });

// A body as text or bytes; param null, because no field is at fault.
const body = (name, make, more = {}) => ({
  name: `body: ${name}`, status: 400, param: null, ...more,
  make: (r) => ({ path: r.pick(postRoutes), body: make(r) }),
});
const withText = (text) => (r) => toJson({ ...good(r), user: new Raw(text(r)) });
const inString = (bytes) => Buffer.concat([Buffer.from('{"messages":[{"role":"user","content":"a'), bytes,
  Buffer.from('b"}],"max_tokens":4}')]);

const bodyKinds = [
  body('empty', () => ''),
  body('white space', (r) => ' \n\t'.repeat(r.between(1, 9999))),
  body('random bytes', (r) => r.bytes(r.between(1, 5000))),
  body('random text', (r) => r.word()),
  body('no object', (r) => toJson(r.pick([[], [good(r)], 'x', 1, true, null]))),
  body('cut off', (r) => {
    const text = toJson(good(r));
    return text.slice(0, r.between(1, text.length - 1));
  }),
  body('followed by more', (r) => toJson(good(r)) + r.pick(['x', '{}', ',', '\u0000', ']'])),
  body('trailing comma', (r) => `${toJson(good(r)).slice(0, -1)},}`),
  body('single quotes', (r) => toJson(good(r)).replaceAll('"', "'")),
  body('comment', (r) => `/* x */ ${toJson(good(r))}`),
  body('unquoted key', () => '{messages: []}'),
  body('not finite', withText((r) => r.pick(['NaN', 'Infinity', '-Infinity', 'nan', 'inf']))),
  body('number out of range', withText((r) => `${r.pick(['', '-'])}${r.between(1, 9)}e${r.between(400, 99999)}`)),
  body('number that is none', withText((r) => r.pick(['01', '+1', '1.', '.5', '1e', '0x10', '--1', '1_000']))),
  body('word that is none', withText((r) => r.pick(['True', 'None', 'undefined', 'nul', r.word()]))),
  body('lone surrogate', withText((r) => `"${r.pick(['\\ud800', '\\udfff', '\\ud800\\u0041', '\\udc00\\ud800'])}"`)),
  body('bad escape', withText((r) => `"${r.pick(['\\x41', '\\u12', '\\u12g4', '\\', '\\a'])}"`)),
  body('control character in a string', withText((r) => `"a${String.fromCharCode(r.below(32))}b"`)),
  body('invalid UTF-8', (r) => inString(Buffer.from(r.pick([[0xff], [0xc0, 0x80], [0xc3], [0xed, 0xa0, 0x80],
    [0xf5, 0x80, 0x80, 0x80], [0xe2, 0x82], [0x80], [0xf0, 0x80, 0x80, 0xaf], [0xfe, 0xff]])))),
  body('UTF-16', (r) => Buffer.from(toJson(good(r)), 'utf16le')),
  body('byte order mark', (r) => Buffer.concat([Buffer.from([0xef, 0xbb, 0xbf]), Buffer.from(toJson(good(r)))])),
  body('lists too deep', withText((r) => {
    const depth = r.between(129, 50_000);
    return '['.repeat(depth) + ']'.repeat(r.pick([0, depth]));
  })),
  body('objects too deep', withText((r) => {
    const depth = r.between(129, 20_000);
    return '{"a":'.repeat(depth) + r.pick(['', `1${'}'.repeat(depth)}`]);
  })),
  body('millions of values', withText(() => `[${'0,'.repeat(5_000_000)}0]`), { most: 6 }),
  body('string without end', (r) => `{"messages":"${'x'.repeat(r.between(1, 1_000_000))}`, { most: 60 }),
  { name: 'body: 65 MB', status: 413, param: null, most: 4,
    make: (r) => ({ path: '/v1/chat/completions', body: Buffer.alloc(65 * 1024 * 1024 + r.below(1e6), 0x20) }) },
  { name: 'body: 50 MB of nothing', status: 400, param: null, most: 3,
    make: () => ({ path: '/v1/chat/completions', body: Buffer.alloc(50 * 1024 * 1024, 0x20) }) },
  { name: 'body: a text of 20 MB', status: 400, param: 'input_tokens', code: 'context_length_exceeded', most: 3,
    make: (r) => ({ path: '/v1/completions', body: toJson({ prompt: `${r.word()} `.repeat(4_000_000), max_tokens: 4 }) }) },
  { name: 'body: repeated key, the last one counts', status: 400, param: 'temperature',
    make: (r) => ({ path: '/v1/chat/completions',
      body: `{"temperature":0,${toJson(good(r)).slice(1, -1)},"temperature":${r.between(3, 99)}}` }) },
  { name: 'body: thousands of repeated keys', status: 400, param: 'temperature',
    make: (r) => ({ path: '/v1/chat/completions',
      body: `{${'"temperature":9,'.repeat(r.between(1000, 20_000))}${toJson(good(r)).slice(1)}` }) },
];

const contentType = (name, value) => ({
  name: `content type: ${name}`, status: 400, param: null,
  make: (r) => ({ path: r.pick(postRoutes), body: toJson(good(r)), headers: { 'Content-Type': value(r) } }),
});
const method = (name, methods, paths) => ({
  name: `method: ${name}`, status: 405, param: null,
  make: (r) => ({ path: r.pick(paths), method: r.pick(methods) }),
});
const route = (name, path, status = 404, param = null, methodOf = (r) => r.pick(['GET', 'POST'])) => ({
  name: `route: ${name}`, status, param, make: (r) => ({ path: path(r), method: methodOf(r) }),
});
const getOnly = ['/v1/models', '/v1/models/fathom-nano', '/version', '/load', '/health', '/metrics'];

const routeKinds = [
  contentType('none', () => null),
  contentType('text', (r) => r.pick(['text/plain', 'text/json', 'application/jsonp', 'application/json-seq', '*/*'])),
  contentType('form', (r) => r.pick(['application/x-www-form-urlencoded', `multipart/form-data; boundary=${r.word()}`])),
  contentType('malformed', (r) => r.pick([';', 'application', ';application/json', 'application /json', r.word()])),
  { name: 'content encoding that is not undone', status: 400, param: null,
    make: (r) => ({ path: r.pick(postRoutes), body: Buffer.concat([Buffer.from([0x1f, 0x8b, 8, 0]), r.bytes(90)]),
      headers: { 'Content-Encoding': 'gzip' } }) },
  method('GET where POST is due', ['GET'], postRoutes),
  method('others on POST routes', ['PUT', 'DELETE', 'PATCH', 'PROPFIND', 'LOCK'], postRoutes),
  method('POST where GET is due', ['POST'], getOnly.filter((path) => path !== '/ping')),
  method('others on GET routes', ['PUT', 'DELETE', 'PATCH', 'REPORT', 'MKCOL'], getOnly),
  route('unknown', (r) => `/${r.word()}`),
  route('unknown under v1', (r) => `/v1/${r.word()}/${r.word()}`),
  route('of other products', (r) => r.pick(['/v1/embeddings', '/v1/files', '/v1/audio/speech', '/api/generate', '/wp-login.php'])),
  route('root', () => '/'),
  route('trailing slash', (r) => `${r.pick(postRoutes.filter((path) => path !== '/v1/responses'))}/`),
  route('upper case', (r) => r.pick(postRoutes).toUpperCase()),
  route('doubled slash', (r) => `/${r.pick(postRoutes)}`),
  route('climbing', (r) => `${r.pick(['', '/v1', '/v1/chat'])}/${'../'.repeat(r.between(1, 9))}etc/passwd`),
  route('escaped', (r) => `/v1%2fchat%2f${r.word()}`),
  route('long', (r) => `/${r.word().repeat(r.between(100, 900))}`),
  route('bad escapes', (r) => `/${r.word()}${r.pick(['%', '%zz', '%00', '%ff', '%c0%80'])}`),
  route('unknown model', (r) => `/v1/models/${r.word()}`, 404, 'model', () => 'GET'),
  route('model without name', () => '/v1/models/', 404, 'model', () => 'GET'),
  route('model with bad escapes', (r) => `/v1/models/${r.pick(['%', '%zz', '%00', '%ff%fe', '%c0%80', '..%2f..%2fx'])}`, 404, 'model', () => 'GET'),
  route('model with a long name', (r) => `/v1/models/${r.word().repeat(r.between(100, 900))}`, 404, 'model', () => 'GET'),
  route('stored response', (r) => `/v1/responses/resp_${r.word()}`, 404, 'response_id'),
  route('cancelled response', (r) => `/v1/responses/resp_${r.word()}/cancel`, 404, 'response_id', () => 'POST'),
];

// Only where the server has a key.
export const keyKinds = [
  ['none', () => null],
  ['wrong', (r) => `Bearer ${r.word()}`],
  ['empty', () => 'Bearer '],
  ['of another scheme', (r) => `Basic ${r.bytes(9).toString('base64')}`],
  ['long', (r) => `Bearer ${r.word().repeat(r.between(100, 900))}`],
].map(([name, value]) => ({
  name: `key: ${name}`, status: 401, param: null,
  make: (r) => ({ path: r.pick([...postRoutes, '/v1/models', `/v1/${r.word()}`]), body: toJson(good(r)),
    headers: { Authorization: value(r) } }),
}));

export const httpKinds = [...bodyKinds, ...routeKinds];
