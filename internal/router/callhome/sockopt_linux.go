package callhome

import (
	"syscall"
	"time"
)

// listenOptions sets what accepted sockets inherit, so that none of them needs a call of its own. A connection that this
// side closes is over when the worker's side has acknowledged that: without TCP_LINGER2 it would wait for the worker to
// close, and then for a minute in TIME_WAIT. Deferred accept makes a connection visible once its handshake has arrived,
// which the acceptor then reads without waiting.
func listenOptions(fd int, deferFor time.Duration) error {
	if err := syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_LINGER2, -1); err != nil {
		return err
	}
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, max(1, int(deferFor/time.Second)))
}
