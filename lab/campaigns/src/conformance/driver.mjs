// Runs tests of the suite in DIR against BASE and prints, as JSON, what they are and how they ended.
// node driver.mjs DIR BASE [IDS]: of a file of ids, only those and what they depend on are run.
import fs from 'node:fs'
import path from 'node:path'
import { pathToFileURL } from 'node:url'

const [directory, base, idsFile] = process.argv.slice(2)
const load = file => import(pathToFileURL(path.join(directory, file)))
const { default: suites } = await load('tests/index.mjs')
const { runTests, getResults } = await load('test-engine/client/runner.mjs')

const all = new Map(suites.flatMap(suite => suite.tests).map(test => [test.id, test]))
const asked = idsFile
  ? fs.readFileSync(idsFile, 'utf8').split('\n').map(line => line.trim().split(/\s+/)[0])
    .filter(id => all.has(id))
  : [...all.keys()].filter(id => !all.get(id).browser_only)
const wanted = new Set()
const want = id => {
  if (wanted.has(id) || !all.has(id)) return
  wanted.add(id)
  for (const other of all.get(id).depends_on || []) want(other)
}
asked.forEach(want)
const chosen = suites
  .map(suite => ({ ...suite, tests: suite.tests.filter(test => wanted.has(test.id)) }))
  .filter(suite => suite.tests.length)
await runTests(chosen, false, base)
const tests = [...wanted].map(id => all.get(id)).map(test => ({
  id: test.id,
  asked: asked.includes(test.id),
  kind: test.kind || 'required',
  targeted: Boolean(test.cdn_only),
  depends_on: test.depends_on || []
}))
console.log(JSON.stringify({ tests, results: getResults() }))
