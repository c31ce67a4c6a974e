// Preloaded into the driver: its requests go to the forward proxy FORWARD_PROXY, in absolute form.
import path from 'node:path'
import { createRequire } from 'node:module'

const undici = createRequire(path.join(process.env.SUITE, 'package.json'))('undici')
const through = { uri: process.env.FORWARD_PROXY, proxyTunnel: false }
undici.setGlobalDispatcher(new undici.ProxyAgent(through))
// Some tests make agents of their own.
undici.Agent = class extends undici.ProxyAgent { constructor () { super(through) } }
