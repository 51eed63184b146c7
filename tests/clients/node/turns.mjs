// The same as ../python/turns.py with one of the SDKs for Node.
//
// usage: node turns.mjs SDK BASE_URL MODEL TOKENS SYSTEM QUESTION...
import OpenAI from 'openai';
import { generateText, streamText } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';

const [sdk, baseURL, model, tokens, system, ...questions] = process.argv.slice(2);
const url = { baseURL: baseURL + '/v1', apiKey: 'unused' };
const plain = (messages) => ({ model, messages, temperature: 0, max_tokens: Number(tokens) });
const client = new OpenAI({ ...url, maxRetries: 0 });
const forAI = (messages) => ({
  model: createOpenAI(url).chat(model), messages, temperature: 0, maxOutputTokens: Number(tokens), maxRetries: 0,
  allowSystemInMessages: true,
});
const asks = {
  openai: {
    whole: async (messages) => (await client.chat.completions.create(plain(messages))).choices[0].message.content,
    streamed: async (messages) => (await client.chat.completions.stream(plain(messages)).finalChatCompletion()).choices[0].message.content,
  },
  ai: {
    whole: async (messages) => (await generateText(forAI(messages))).text,
    streamed: (messages) => streamText(forAI(messages)).text,
  },
};

async function turns(ask) {
  const messages = [{ role: 'system', content: system }], answers = [];
  for (const content of questions) {
    messages.push({ role: 'user', content });
    const answer = await ask(messages);
    messages.push({ role: 'assistant', content: answer });
    answers.push(answer);
  }
  return answers;
}

const { whole, streamed } = asks[sdk];
console.log(JSON.stringify({ whole: await turns(whole), streamed: await turns(streamed) }));
