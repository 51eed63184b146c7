//go:build !linux

package kvroute_test

import "time"

// threadTime isn't known here.
func threadTime() time.Duration { return 0 }
