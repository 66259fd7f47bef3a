// Bad bodies for the other routes that take one.
import { commonKinds, samplingFields } from './chat_kinds.mjs';
import { Raw, fieldKind, fieldKinds, kindsOf } from './kind.mjs';
import { ofOtherType } from '../random.mjs';

const completion = kindsOf('/v1/completions', (r) => ({ prompt: `Say ${r.word()}`, max_tokens: 4 }));
const prompt = (what, param, value) => fieldKind(completion, 'prompt', what, value, 400, param);
const tokenOutside = (r) => r.pick([-1, -2147483649, 1e9, new Raw('99999999999999999999')]);

const completionKinds = [
  ...commonKinds(completion),
  ...fieldKinds(completion, { name: 'max_tokens', type: 'integer', low: (r) => -r.below(9) }),
  ...fieldKinds(completion, { name: 'logprobs', type: 'integer', low: (r) => -1 - r.below(9), high: (r) => 21 + r.below(99) }),
  ...fieldKinds(completion, { name: 'add_special_tokens', type: 'boolean' }),
  ...fieldKinds(completion, { name: 'skip_special_tokens', type: 'boolean' }),
  fieldKind(completion, 'suffix', 'given', (r) => r.word()),
  completion('prompt: missing', 400, 'prompt', (body) => { delete body.prompt; }),
  prompt('wrong type', 'prompt', (r) => r.pick([1, true, {}])),
  prompt('empty', 'prompt', (r) => r.pick(['', []])),
  prompt('empty one of several', 'prompt.1', (r) => ['x', r.pick(['', []])]),
  prompt('item of wrong type', 'prompt.1', (r) => ['x', r.pick([1, null, true, {}])]),
  prompt('token outside the vocabulary', 'prompt.2', (r) => [5, 6, tokenOutside(r)]),
  prompt('token of wrong type', 'prompt.1', (r) => [5, r.pick(['x', null, 1.5, [5], {}])]),
  prompt('token outside in a list of lists', 'prompt.1.0', (r) => [[5], [tokenOutside(r)]]),
  prompt('too many', 'prompt', (r) => Array.from({ length: r.between(1025, 3000) }, () => 'x')),
  completion('prompts times n too many', 400, 'n', (body) => {
    Object.assign(body, { n: 100, prompt: Array.from({ length: 11 }, () => 'x') });
  }),
  completion('prompt longer than the context', 400, 'input_tokens', (body, r) => {
    body.prompt = r.pick([`${r.word()} `.repeat(6000), Array.from({ length: 4097 }, () => 5)]);
  }, { code: 'context_length_exceeded' }),
  completion('one prompt of several longer than the context', 400, 'input_tokens', (body) => {
    body.prompt = ['x', ' y'.repeat(9000)];
  }, { code: 'context_length_exceeded' }),
];

// Anthropic's: errors have no `param`, the message names the field.
const base = (r) => ({ model: 'fathom-nano', max_tokens: 4, messages: [{ role: 'user', content: `Say ${r.word()}.` }] });
function messagesKinds(path) {
  const kind = kindsOf(path, base);
  const set = (field, what, value, status = 400) => fieldKind(kind, field, what, value, status, undefined);
  const message = (name, value) => kind(`message: ${name}`, 400, undefined, (body, r) => { body.messages = value(r); });
  const block = (value) => [{ role: 'user', content: [value] }];
  const answer = (value) => [{ role: 'user', content: 'x' }, { role: 'assistant', content: [value] }];
  const choice = (name, value) => kind(`tool_choice: ${name}`, 400, undefined, (body, r) => {
    Object.assign(body, { tools: [{ name: 'f', input_schema: { type: 'object' } }], tool_choice: value(r) });
  });
  return [
    ...samplingFields.filter(({ name }) => ['temperature', 'top_p', 'top_k'].includes(name))
      .flatMap((field) => fieldKinds(kind, field)),
    ...fieldKinds(kind, { name: 'model', type: 'string' }),
    ...fieldKinds(kind, { name: 'stream', type: 'boolean' }),
    ...fieldKinds(kind, { name: 'messages', type: 'list' }),
    ...fieldKinds(kind, { name: 'tools', type: 'list' }),
    ...fieldKinds(kind, { name: 'tool_choice', type: 'object' }),
    ...fieldKinds(kind, { name: 'thinking', type: 'object' }),
    ...fieldKinds(kind, { name: 'output_config', type: 'object' }),
    kind('model: missing', 400, undefined, (body) => { delete body.model; }),
    set('model', 'unknown', (r) => `claude-${r.word()}`, 404),
    set('system', 'wrong type', (r) => r.pick([1, true, {}])),
    set('system', 'image', () => [{ type: 'image', source: {} }]),
    set('system', 'block without type', () => [{ text: 'x' }]),
    set('stop_sequences', 'wrong type', (r) => r.pick([1, true, {}])),
    set('stop_sequences', 'too many', (r) => Array.from({ length: r.between(65, 999) }, () => r.word())),
    set('stop_sequences', 'empty string', () => ['']),
    message('none', () => []),
    message('no object', (r) => [ofOtherType('object', r)]),
    message('unknown role', (r) => [{ role: r.pick(['tool', 'developer', r.word()]), content: 'x' }]),
    message('no role', () => [{ content: 'x' }]),
    message('no content', () => [{ role: 'user' }]),
    message('content of wrong type', (r) => [{ role: 'user', content: r.pick([1, true, {}]) }]),
    message('block of wrong type', (r) => block(ofOtherType('object', r))),
    message('block without type', () => block({ text: 'x' })),
    message('unknown block', (r) => block({ type: r.word() })),
    message('image', (r) => block({ type: 'image', source: { type: 'base64', media_type: 'image/png', data: r.bytes(60).toString('base64') } })),
    message('document', () => block({ type: 'document', source: { type: 'text', data: 'x' } })),
    message('text block without text', () => block({ type: 'text' })),
    message('tool_use of a user', () => block({ type: 'tool_use', id: 'a', name: 'f', input: {} })),
    message('tool_use without id', () => answer({ type: 'tool_use', name: 'f', input: {} })),
    message('tool_use without name', () => answer({ type: 'tool_use', id: 'a', input: {} })),
    message('tool_result without id', () => block({ type: 'tool_result', content: 'x' })),
    message('tool_result with content of wrong type', (r) => block({ type: 'tool_result', tool_use_id: 'a', content: r.pick([1, true, {}]) })),
    message('tool_result of an assistant', () => answer({ type: 'tool_result', tool_use_id: 'a', content: 'x' })),
    message('thinking without text', () => answer({ type: 'thinking' })),
    message('thinking of a user', () => block({ type: 'thinking', thinking: 'x' })),
    kind('tool that runs at the provider', 400, undefined, (body) => {
      body.tools = [{ type: 'web_search_20250305', name: 'web_search' }];
    }),
    kind('tool without name', 400, undefined, (body) => { body.tools = [{ input_schema: {} }]; }),
    kind('tool that is no object', 400, undefined, (body, r) => { body.tools = [ofOtherType('object', r)]; }),
    choice('unknown', (r) => ({ type: r.word() })),
    choice('without type', () => ({ name: 'f' })),
    choice('tool without name', () => ({ type: 'tool' })),
    choice('unknown tool', () => ({ type: 'tool', name: 'g' })),
    choice('disable_parallel_tool_use of wrong type', (r) => ({ type: 'auto', disable_parallel_tool_use: ofOtherType('boolean', r) })),
    kind('tool_choice: any without tools', 400, undefined, (body) => { body.tool_choice = { type: 'any' }; }),
    set('thinking', 'unknown type', (r) => ({ type: r.word() })),
    set('thinking', 'without type', () => ({ budget_tokens: 9 })),
    set('thinking', 'budget of wrong type', (r) => ({ type: 'enabled', budget_tokens: ofOtherType('integer', r) })),
    set('output_config', 'unknown effort', (r) => ({ effort: r.word() })),
    set('output_config', 'unknown format', (r) => ({ format: { type: r.word() } })),
  ];
}
const generate = kindsOf('/v1/messages', base);
const anthropicKinds = [
  ...messagesKinds('/v1/messages'), ...messagesKinds('/v1/messages/count_tokens'),
  ...fieldKinds(generate, { name: 'max_tokens', type: 'integer', low: (r) => -r.below(9) }),
  generate('max_tokens: missing', 400, undefined, (body) => { delete body.max_tokens; }),
  generate('prompt longer than the context', 400, undefined, (body, r) => {
    body.messages[0].content = `${r.word()} `.repeat(6000);
  }),
];

const response = kindsOf('/v1/responses', (r) => ({ input: `Say ${r.word()}.`, max_output_tokens: 4 }));
const input = (name, param, value) => response(`input: ${name}`, 400, param, (body, r) => { body.input = value(r); });
const functionTool = { type: 'function', name: 'f', parameters: { type: 'object' } };
const responsesKinds = [
  ...samplingFields.flatMap((field) => fieldKinds(response, field)),
  ...fieldKinds(response, { name: 'max_output_tokens', type: 'integer', low: (r) => -r.below(9) }),
  ...['stream', 'store', 'background', 'parallel_tool_calls'].flatMap((name) =>
    fieldKinds(response, { name, type: 'boolean' })),
  ...['model', 'instructions', 'previous_response_id', 'truncation', 'user'].flatMap((name) =>
    fieldKinds(response, { name, type: 'string' })),
  ...['tools', 'include'].flatMap((name) => fieldKinds(response, { name, type: 'list' })),
  ...['text', 'reasoning'].flatMap((name) => fieldKinds(response, { name, type: 'object' })),
  fieldKind(response, 'model', 'unknown', (r) => r.word(), 404),
  fieldKind(response, 'background', 'asked for', () => true),
  fieldKind(response, 'previous_response_id', 'given', (r) => `resp_${r.word()}`, 404),
  fieldKind(response, 'truncation', 'unknown', (r) => r.word()),
  fieldKind(response, 'prompt', 'given', (r) => ({ id: r.word() })),
  fieldKind(response, 'include', 'item of wrong type', (r) => [ofOtherType('string', r)], 400, 'include.0'),
  fieldKind(response, 'include', 'not offered', () => ['file_search_call.results'], 422, 'include.0'),
  response('input: missing', 400, 'input', (body) => { delete body.input; }),
  input('wrong type', 'input', (r) => r.pick([1, true, {}])),
  input('empty list', 'input', () => []),
  input('item that is no object', 'input.0', (r) => [ofOtherType('object', r)]),
  input('unknown item', 'input.0.type', (r) => [{ type: r.pick(['item_reference', 'computer_call', r.word()]) }]),
  input('unknown role', 'input.0.role', (r) => [{ role: r.pick(['tool', r.word()]), content: 'x' }]),
  input('no content', 'input.0.content', () => [{ role: 'user' }]),
  input('call without call_id', 'input.0.call_id', () => [{ type: 'function_call', name: 'f', arguments: '{}' }]),
  input('call without name', 'input.0.name', () => [{ type: 'function_call', call_id: 'a', arguments: '{}' }]),
  input('output without call_id', 'input.0.call_id', () => [{ type: 'function_call_output', output: 'x' }]),
  input('output of wrong type', 'input.0.output', (r) => [{ type: 'function_call_output', call_id: 'a', output: r.pick([1, true, {}]) }]),
  input('reasoning of wrong type', 'input.0.content', (r) => [{ type: 'reasoning', content: r.pick([1, true, {}]) }]),
  fieldKind(response, 'tools', 'hosted', (r) => [{ type: r.pick(['web_search', 'file_search', 'mcp', 'code_interpreter']) }], 400, 'tools.0.type'),
  fieldKind(response, 'tools', 'without name', () => [{ type: 'function' }], 400, 'tools.0.name'),
  fieldKind(response, 'tools', 'no object', (r) => [ofOtherType('object', r)], 400, 'tools.0'),
  response('tool_choice: unknown tool', 400, 'tool_choice', (body) => {
    Object.assign(body, { tools: [functionTool], tool_choice: { type: 'function', name: 'g' } });
  }),
  response('tool_choice: unknown word', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [functionTool], tool_choice: r.word() });
  }),
  response('tool_choice: hosted tool', 400, 'tool_choice', (body) => {
    Object.assign(body, { tools: [functionTool], tool_choice: { type: 'file_search' } });
  }),
  fieldKind(response, 'text', 'unknown format', (r) => ({ format: { type: r.word() } }), 400, 'text.format.type'),
  response('prompt longer than the context', 400, 'input_tokens', (body, r) => {
    body.input = `${r.word()} `.repeat(6000);
  }, { code: 'context_length_exceeded' }),
];

const tokenize = kindsOf('/tokenize', (r) => ({ prompt: r.word() }));
const detokenize = kindsOf('/detokenize', () => ({ tokens: [5, 6] }));
const tokenKinds = [
  ...fieldKinds(tokenize, { name: 'prompt', type: 'string' }),
  ...fieldKinds(tokenize, { name: 'model', type: 'string' }),
  ...fieldKinds(tokenize, { name: 'add_special_tokens', type: 'boolean' }),
  ...fieldKinds(tokenize, { name: 'return_token_strs', type: 'boolean' }),
  fieldKind(tokenize, 'model', 'unknown', (r) => r.word(), 404),
  tokenize('neither prompt nor messages', 400, 'prompt', (body) => { delete body.prompt; }),
  tokenize('prompt and messages', 400, 'prompt', (body) => { body.messages = [{ role: 'user', content: 'x' }]; }),
  tokenize('messages of wrong type', 400, 'messages', (body, r) => {
    delete body.prompt;
    body.messages = ofOtherType('list', r);
  }),
  tokenize('unknown role', 400, 'messages.0.role', (body, r) => {
    delete body.prompt;
    body.messages = [{ role: r.word(), content: 'x' }];
  }),
  ...fieldKinds(detokenize, { name: 'tokens', type: 'list' }),
  ...fieldKinds(detokenize, { name: 'model', type: 'string' }),
  fieldKind(detokenize, 'model', 'unknown', (r) => r.word(), 404),
  detokenize('tokens: missing', 400, 'tokens', (body) => { delete body.tokens; }),
  fieldKind(detokenize, 'tokens', 'outside the vocabulary', (r) => [5, tokenOutside(r)], 400, 'tokens.1'),
  fieldKind(detokenize, 'tokens', 'item of wrong type', (r) => [r.pick(['5', null, 1.5, [], {}])], 400, 'tokens.0'),
];

export const apiKinds = [...completionKinds, ...anthropicKinds, ...responsesKinds, ...tokenKinds];
