// Bad conversations and tools for /v1/chat/completions.
import { kindsOf } from './kind.mjs';
import { ofOtherType } from '../random.mjs';

const chatBase = (r) => ({
  messages: [{ role: 'user', content: `Say ${r.word()}.` }],
  max_tokens: 4,
  [`x_${r.word()}`]: r.below(10),
});
export const chat = kindsOf('/v1/chat/completions', chatBase);

const tool = (name) => ({
  type: 'function',
  function: {
    name,
    description: 'A tool.',
    parameters: { type: 'object', properties: { city: { type: 'string' } } },
  },
});

const message = (name, param, value) =>
  chat(`message: ${name}`, 400, param, (body, r) => {
    body.messages = value(r);
  });
const user = (content) => ({ role: 'user', content });
const call = (more) => [user('x'), { role: 'assistant', content: '', tool_calls: [more] }];

export const messageKinds = [
  chat('message: none at all', 400, 'messages', (body) => {
    delete body.messages;
  }),
  message('empty list', 'messages', () => []),
  message('no object', 'messages.0', (r) => [ofOtherType('object', r)]),
  message('second is no object', 'messages.1', (r) => [user('x'), ofOtherType('object', r)]),
  message('unknown role', 'messages.0.role', (r) => [
    { role: r.pick(['function', 'USER', r.word(), '']), content: 'x' },
  ]),
  message('role of wrong type', 'messages.0.role', (r) => [{ role: ofOtherType('string', r), content: 'x' }]),
  message('no role', 'messages.0.role', () => [{ content: 'x' }]),
  message('long role', 'messages.0.role', (r) => [{ role: 'x'.repeat(r.between(1e3, 1e5)), content: 'x' }]),
  message('content of wrong type', 'messages.0.content', (r) => [user(r.pick([1, true, {}, { text: 'x' }]))]),
  message('part of wrong type', 'messages.0.content.1', (r) => [user(['x', r.pick([1, null, true, []])])]),
  message('image', 'messages.0.content.1.type', (r) => [
    user([
      { type: 'text', text: 'x' },
      { type: 'image_url', image_url: { url: `data:image/png;base64,${r.bytes(90).toString('base64')}` } },
    ]),
  ]),
  message('audio', 'messages.0.content.0.type', () => [
    user([{ type: 'input_audio', input_audio: { data: '', format: 'wav' } }]),
  ]),
  message('file', 'messages.0.content.0.type', () => [user([{ type: 'file', file: { file_id: 'f' } }])]),
  message('part of unknown type', 'messages.0.content.0.type', (r) => [user([{ type: r.word() }])]),
  message('part without type', 'messages.0.content.0.type', () => [user([{ a: 1 }])]),
  message('part type of wrong type', 'messages.0.content.0.type', (r) => [
    user([{ type: ofOtherType('string', r), text: 'x' }]),
  ]),
  message('text part without text', 'messages.0.content.0.text', () => [user([{ type: 'text' }])]),
  message('text of wrong type', 'messages.0.content.0.text', (r) => [
    user([{ type: 'text', text: ofOtherType('string', r) }]),
  ]),
  message('empty developer message', 'messages.0.content', (r) => [
    { role: 'developer', content: r.pick(['', null, []]) },
    user('x'),
  ]),
  message('reasoning of wrong type', 'messages.1.reasoning', (r) => [
    user('x'),
    { role: 'assistant', content: 'y', reasoning: ofOtherType('string', r) },
  ]),
  message('reasoning_content of wrong type', 'messages.1.reasoning_content', (r) => [
    user('x'),
    { role: 'assistant', content: 'y', reasoning_content: ofOtherType('string', r) },
  ]),
  message('tool_calls of wrong type', 'messages.1.tool_calls', (r) => [
    user('x'),
    { role: 'assistant', tool_calls: ofOtherType('list', r) },
  ]),
  message('call that is no object', 'messages.1.tool_calls.0', (r) => call(ofOtherType('object', r))),
  message('call without function', 'messages.1.tool_calls.0.function', () =>
    call({ id: 'a', type: 'function' }),
  ),
  message('call with function of wrong type', 'messages.1.tool_calls.0.function', (r) =>
    call({ function: ofOtherType('object', r) }),
  ),
  message('call without name', 'messages.1.tool_calls.0.function.name', () =>
    call({ function: { arguments: '{}' } }),
  ),
  message('call with name of wrong type', 'messages.1.tool_calls.0.function.name', (r) =>
    call({ function: { name: ofOtherType('string', r) } }),
  ),
  message('call with id of wrong type', 'messages.1.tool_calls.0.id', (r) =>
    call({ id: ofOtherType('string', r), function: { name: 'f' } }),
  ),
  message('tool_call_id of wrong type', 'messages.1.tool_call_id', (r) => [
    user('x'),
    { role: 'tool', content: 'y', tool_call_id: ofOtherType('string', r) },
  ]),
  message('thousands, the last one bad', undefined, (r) => [
    ...Array.from({ length: r.between(1000, 5000) }, () => user('x')),
    { role: 'x' },
  ]),
  chat('continue_final_message after a user message', 400, 'continue_final_message', (body) => {
    body.continue_final_message = true;
  }),
  chat('continue_final_message and add_generation_prompt', 400, 'continue_final_message', (body) => {
    body.messages.push({ role: 'assistant', content: 'y' });
    Object.assign(body, { continue_final_message: true, add_generation_prompt: true });
  }),
  chat(
    'prompt longer than the context',
    400,
    'input_tokens',
    (body, r) => {
      body.messages[0].content = `${r.word()} `.repeat(r.between(5000, 9000));
    },
    { code: 'context_length_exceeded' },
  ),
  chat(
    'conversation longer than the context',
    400,
    'input_tokens',
    (body, r) => {
      body.messages = Array.from({ length: 999 }, (_, i) => ({
        role: i % 2 ? 'assistant' : 'user',
        content: `${r.word()} ${i} ${r.word()} ${r.word()}`,
      }));
    },
    { code: 'context_length_exceeded' },
  ),
];

export const toolKinds = [
  chat('tool that is no object', 400, 'tools.0', (body, r) => {
    body.tools = [ofOtherType('object', r)];
  }),
  chat('tool of unknown type', 400, 'tools.0', (body, r) => {
    body.tools = [{ ...tool('f'), type: r.word() }];
  }),
  chat('tool without type', 400, 'tools.0', (body) => {
    body.tools = [{ ...tool('f'), type: undefined }];
  }),
  chat('tool without function', 400, 'tools.1', (body) => {
    body.tools = [tool('f'), { type: 'function' }];
  }),
  chat('tool without name', 400, 'tools.0', (body) => {
    body.tools = [{ type: 'function', function: {} }];
  }),
  chat('tool with name of wrong type', 400, 'tools.0', (body, r) => {
    body.tools = [{ type: 'function', function: { name: ofOtherType('string', r) } }];
  }),
  chat('tool_choice: unknown word', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')], tool_choice: r.pick([r.word(), 'any', 'AUTO', '']) });
  }),
  chat('tool_choice: wrong type', 400, 'tool_choice', (body, r) => {
    Object.assign(body, { tools: [tool('f')], tool_choice: r.pick([1, true, [], ['auto']]) });
  }),
  chat('tool_choice: required without tools', 400, 'tool_choice', (body) => {
    body.tool_choice = 'required';
  }),
  chat('tool_choice: named without tools', 400, 'tool_choice', (body) => {
    body.tool_choice = { type: 'function', function: { name: 'f' } };
  }),
  chat('tool_choice: unknown tool', 400, 'tool_choice', (body, r) => {
    Object.assign(body, {
      tools: [tool('f')],
      tool_choice: { type: 'function', function: { name: `g${r.word().repeat(r.between(1, 500))}` } },
    });
  }),
  chat('tool_choice: named without name', 400, 'tool_choice', (body, r) => {
    Object.assign(body, {
      tools: [tool('f')],
      tool_choice: r.pick([
        {},
        { type: 'function' },
        { type: 'function', function: {} },
        { function: { name: 'f' } },
      ]),
    });
  }),
];
