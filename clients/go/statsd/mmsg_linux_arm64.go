package statsd

// sysSendmmsg is missing in package syscall, which is frozen.
const sysSendmmsg = 269
