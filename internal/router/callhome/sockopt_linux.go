package callhome

import (
	"syscall"
	"time"
)

// listenOptions sets what accepted sockets inherit, so that none of them needs a call of its own: no lingering after
// close, which would keep finished connections in TIME_WAIT. Deferred accept makes a connection visible once its
// handshake has arrived, which the acceptor then reads without waiting.
func listenOptions(fd int, deferFor time.Duration) error {
	if err := syscall.SetsockoptLinger(fd, syscall.SOL_SOCKET, syscall.SO_LINGER, &syscall.Linger{Onoff: 1}); err != nil {
		return err
	}
	return syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_DEFER_ACCEPT, max(1, int(deferFor/time.Second)))
}
