//go:build !linux

package callhome

import "time"

func listenOptions(int, time.Duration) error { return nil }
