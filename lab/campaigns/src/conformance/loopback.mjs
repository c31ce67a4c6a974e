// Preloaded into the suite's origin: it would listen on every interface, and is to be had here alone.
import net from 'node:net'

const { listen } = net.Server.prototype
net.Server.prototype.listen = function (port, ...rest) {
  return listen.call(this, Number(port), '127.0.0.1', ...rest.filter(each => typeof each === 'function'))
}
