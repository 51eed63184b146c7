package config

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Loads is what the router makes of the workers' loads.
type Loads struct {
	// Thresholds beyond which a worker is left out; nil for none.
	DecodeBlocks    *float64 // share of a worker's KV blocks
	PrefillTokens   *float64 // whole
	PrefillFraction *float64 // of the tokens of a batch

	Queue *float64 // share of a batch's tokens in prefill beyond which requests wait; nil for no such bound

	AffinityTTL  *float64 // idle seconds after which a session is forgotten; nil or 0 binds none
	AffinityMode string   // "hard" or "soft"
	AffinitySync bool     // other frontends are told which worker a session goes to
}

// addLoad lists what is done about the workers' loads.
func (t *table) addLoad(l *Loads) {
	t.group = "Overload"
	t.add("active-decode-blocks-threshold", "DYN_ACTIVE_DECODE_BLOCKS_THRESHOLD", optional(&l.DecodeBlocks, 1, false),
		"Share of its KV blocks in use beyond which a worker gets no requests, 0 to 1. What a model's card says wins, and "+
			"what is set with POST /busy_threshold before that.")
	t.add("active-prefill-tokens-threshold", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD",
		optional(&l.PrefillTokens, math.MaxInt32, true),
		"Tokens waiting for or in prefill beyond which a worker gets no requests.")
	t.add("active-prefill-tokens-threshold-frac", "DYN_ACTIVE_PREFILL_TOKENS_THRESHOLD_FRAC",
		optional(&l.PrefillFraction, math.MaxInt32, false),
		"The same as a multiple of the worker's max_num_batched_tokens; the lower of the two counts.")
	t.add("router-queue-threshold", "DYN_ROUTER_QUEUE_THRESHOLD", optional(&l.Queue, math.MaxInt32, false),
		"Multiple of max_num_batched_tokens in prefill beyond which all workers have enough to do, so that requests wait here.")
	t.add("router-session-affinity-ttl-secs", "DYN_ROUTER_SESSION_AFFINITY_TTL_SECS",
		optional(&l.AffinityTTL, math.MaxInt32, false),
		"Send the requests of a session to one worker until it has been idle for so long; None doesn't. Sessions are told by "+
			"x-dynamo-session-id, x-claude-code-session-id, thread-id and x-session-id.")
	t.add("router-session-affinity-mode", "DYN_ROUTER_SESSION_AFFINITY_MODE",
		choice(&l.AffinityMode, "hard", "hard", "soft"),
		"Whether a session is refused while its worker is overloaded (hard) or goes elsewhere (soft).")
	t.add("router-session-affinity-sync", "PORTICO_ROUTER_SESSION_AFFINITY_SYNC", boolean(&l.AffinitySync, true),
		"Whether frontends that find each other in discovery tell each other which worker a session goes to, and that "+
			"x-dynamo-session-final has ended it.")
}

// optionalValue is a number that need not be there.
type optionalValue struct {
	p     **float64
	max   float64
	whole bool
}

// optional binds a number from 0 on that may be left out; None is Dynamo's word for that.
func optional(p **float64, maximum float64, whole bool) value {
	*p = nil
	return optionalValue{p, maximum, whole}
}

// set takes a number, None, or nothing.
func (v optionalValue) set(s string) error {
	if s == "" || strings.EqualFold(s, "none") {
		*v.p = nil
		return nil
	}
	n, err := strconv.ParseFloat(s, 64)
	if err != nil || !(n >= 0 && n <= v.max) || (v.whole && n != math.Trunc(n)) { // written so that NaN is refused
		return errNotAllowed
	}
	*v.p = &n
	return nil
}

func (v optionalValue) String() string {
	if *v.p == nil {
		return ""
	}
	return strconv.FormatFloat(**v.p, 'f', -1, 64)
}

func (v optionalValue) allowed() string {
	what := "a number"
	if v.whole {
		what = "a whole number"
	}
	if v.max == math.MaxInt32 {
		return what + ", at least 0, or None"
	}
	return fmt.Sprintf("%s from 0 to %v, or None", what, v.max)
}
func (v optionalValue) kind() string { return "NUMBER" }

// limitsValue is a list of name=number.
type limitsValue struct{ p *map[string]int }

// limits binds whole numbers from 0 on by name.
func limits(p *map[string]int) value { *p = nil; return limitsValue{p} }

// set replaces all numbers at once, as pairs does. Names with commas or equals signs can't be given.
func (v limitsValue) set(s string) error {
	named, err := parsePairs(s)
	if err != nil {
		return err
	}
	m := make(map[string]int, len(named))
	for name, text := range named {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil || n < 0 {
			return errNotAllowed
		}
		m[name] = int(n)
	}
	*v.p = m
	return nil
}

// String lists the names in order.
func (v limitsValue) String() string {
	named := make(map[string]string, len(*v.p))
	for name, n := range *v.p {
		named[name] = strconv.Itoa(n)
	}
	return formatPairs(named)
}
func (v limitsValue) allowed() string {
	return "a list name=number,name=number of whole numbers, at least 0, or a mapping in the file"
}
func (v limitsValue) kind() string { return "NAME=N,NAME=N" }
