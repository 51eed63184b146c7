package simworker

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// FaultKind names a way to break the protocol.
type FaultKind string

// The faults, in the order of the steps they break.
const (
	NoFault       FaultKind = ""
	Overloaded    FaultKind = "overloaded"     // refuse: at capacity (TCP plane; NATS workers cannot refuse)
	Unknown       FaultKind = "unknown"        // refuse: unknown endpoint (TCP plane)
	NoAck         FaultKind = "no-ack"         // take the request and never acknowledge it
	NeverCall     FaultKind = "never-call"     // acknowledge and never dial back
	SlowCall      FaultKind = "slow-call"      // dial back after Delay
	NoHandshake   FaultKind = "no-handshake"   // dial back and say nothing
	BadSubject    FaultKind = "bad-subject"    // a handshake nobody waits for
	HandshakeOnly FaultKind = "handshake-only" // close after the handshake
	ErrorPrologue FaultKind = "error-prologue" // refuse in the prologue
	DieAfter      FaultKind = "die-after"      // break off after After items
	HangAfter     FaultKind = "hang-after"     // send nothing more after After items
	ErrorAfter    FaultKind = "error-after"    // an error item after After items
	GarbageAfter  FaultKind = "garbage-after"  // bytes that are no frame after After items
	BadItemAfter  FaultKind = "bad-item-after" // a frame whose body is no item after After items
	NoFinal       FaultKind = "no-final"       // sentinel without complete_final
	NoSentinel    FaultKind = "no-sentinel"    // close after complete_final
	DataAfterEnd  FaultKind = "data-after-end" // an item after complete_final
	SlowItems     FaultKind = "slow"           // Delay before every item
	IgnoreStop    FaultKind = "ignore-stop"    // go on generating after stop and kill
)

// Fault is what goes wrong with a request. The zero value is nothing.
type Fault struct {
	Kind  FaultKind
	After int           // items sent before it
	Delay time.Duration // of SlowCall and SlowItems
}

// faultKinds are the kinds a plan may name: all of them but NoFault.
var faultKinds = map[FaultKind]bool{
	Overloaded: true, Unknown: true, NoAck: true, NeverCall: true, SlowCall: true, NoHandshake: true, BadSubject: true,
	HandshakeOnly: true, ErrorPrologue: true, DieAfter: true, HangAfter: true, ErrorAfter: true, GarbageAfter: true,
	BadItemAfter: true, NoFinal: true, NoSentinel: true, DataAfterEnd: true, SlowItems: true, IgnoreStop: true,
}

// ParseFaults reads a fault plan for a command line: faults separated by commas, each "kind", "kind=N" (after N items)
// or "kind=DURATION", each with an optional "/M" to strike every Mth request only. The first that strikes wins.
func ParseFaults(plan string) (func(*Request) Fault, error) {
	// A rule is one part of the plan.
	type rule struct {
		fault Fault
		every uint64 // strikes requests every, 2·every, … at a worker; 1 is all
	}
	var rules []rule
	for part := range strings.SplitSeq(plan, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		spec, every, periodic := strings.Cut(part, "/")
		r := rule{every: 1}
		if periodic {
			n, err := strconv.ParseUint(every, 10, 32)
			if err != nil || n == 0 {
				return nil, fmt.Errorf("simworker: fault %q: want a positive number after /", part)
			}
			r.every = n
		}
		kind, value, _ := strings.Cut(spec, "=")
		r.fault.Kind = FaultKind(kind)
		if !faultKinds[r.fault.Kind] {
			return nil, fmt.Errorf("simworker: unknown fault %q", kind)
		}
		if err := r.fault.parseValue(value); err != nil {
			return nil, fmt.Errorf("simworker: fault %q: %w", part, err)
		}
		rules = append(rules, r)
	}
	// The plan is never changed from here on, so the function may be called from many goroutines at a time.
	return func(req *Request) Fault {
		for _, r := range rules {
			// Ordinals count from 0, the plan's numbers from 1: "/10" strikes the tenth request first.
			if (req.Ordinal+1)%r.every == 0 {
				return r.fault
			}
		}
		return Fault{}
	}, nil
}

// parseValue reads what follows the = of a fault: a whole number is a count of items, anything else a duration. Whether
// the kind makes use of it isn't checked: a value it doesn't need changes nothing.
func (f *Fault) parseValue(v string) error {
	if v == "" {
		return nil
	}
	if n, err := strconv.Atoi(v); err == nil {
		f.After = n
		return nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return fmt.Errorf("want a count or a duration: %w", err)
	}
	f.Delay = d
	return nil
}
