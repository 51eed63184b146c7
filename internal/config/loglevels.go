package config

import (
	"log/slog"
	"math"
	"strings"
)

// LogLevels says from which level on something is logged, by default and for single parts of the program.
type LogLevels struct {
	Default slog.Level            // of parts without one of their own
	Targets map[string]slog.Level // by the name of the part
	text    string                // as it was given
}

// Levels beyond slog's own, as Dynamo names them.
const (
	LevelTrace slog.Level = slog.LevelDebug - 4 // everything
	LevelOff   slog.Level = math.MaxInt32       // above all that is ever logged
)

// logValue reads the filter syntax of Dynamo's DYN_LOG: a level, and target=level, with commas. Directives about spans
// ("[span]=debug") are accepted and left out: there are no spans in the log.
type logValue struct{ p *LogLevels }

// logLevels binds a filter; the default is Info everywhere, as in Dynamo.
func logLevels(p *LogLevels) value {
	*p = LogLevels{Default: slog.LevelInfo, text: "info"}
	return logValue{p}
}

// set starts from Error, which is what the syntax means by a filter that names targets alone.
func (v logValue) set(s string) error {
	levels := LogLevels{Default: slog.LevelError, Targets: map[string]slog.Level{}, text: s}
	for directive := range strings.SplitSeq(s, ",") {
		directive = strings.TrimSpace(directive)
		target, word, hasTarget := strings.Cut(directive, "=")
		switch level, isLevel := logLevel(directive); {
		case directive == "" || strings.ContainsAny(directive, "[]{}"):
		// Of several plain levels the last one counts, as of several for one target.
		case isLevel:
			levels.Default = level
		case hasTarget:
			if level, isLevel = logLevel(word); !isLevel {
				return errNotAllowed
			}
			levels.Targets[target] = level
		case strings.ContainsAny(directive, "_:"): // a target alone; anything else is a misspelt level
			levels.Targets[directive] = LevelTrace
		default:
			return errNotAllowed
		}
	}
	*v.p = levels
	return nil
}

// logLevel knows the words for levels, in any case.
func logLevel(word string) (slog.Level, bool) {
	switch strings.ToLower(word) {
	case "off":
		return LevelOff, true
	case "error":
		return slog.LevelError, true
	case "warn", "warning":
		return slog.LevelWarn, true
	case "info":
		return slog.LevelInfo, true
	case "debug":
		return slog.LevelDebug, true
	case "trace":
		return LevelTrace, true
	}
	return 0, false
}

// String gives the filter back as it was written: it reads better than what it was taken apart into.
func (v logValue) String() string { return v.p.text }
func (v logValue) allowed() string {
	return "off, error, warn, info, debug or trace, and the same for parts as in info,router=debug"
}
func (v logValue) kind() string { return "LEVELS" }
