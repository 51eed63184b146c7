package config

import (
	"slices"
	"strings"
)

// assignment is a value somebody wants a setting to have.
type assignment struct {
	setting *Setting
	text    string // as it was written
	source  Source // for messages, and for the dump
}

// flagSet finds settings by the names of their flags.
type flagSet struct {
	byName map[string]flagName // without dashes; aliases and --no-… included
}

// flagName is what one name of a flag means: the setting, or for --no-… its opposite.
type flagName struct {
	setting *Setting // with or without effect
	negated bool     // --no-x: the opposite
}

// newFlagSet collects the names of all flags.
func newFlagSet(settings []*Setting) *flagSet {
	f := &flagSet{byName: make(map[string]flagName)}
	for _, s := range settings {
		for _, name := range append([]string{s.Key}, s.Aliases...) {
			f.byName[name] = flagName{setting: s}
			// One-letter flags have no opposite, as in Dynamo.
			if s.Switch() && len(name) > 1 {
				f.byName["no-"+name] = flagName{setting: s, negated: true}
			}
		}
	}
	return f
}

// parse reads a command line. It goes on after an error, so that all of them are reported at once. A flag that comes
// twice is assigned twice: the last one holds.
func (f *flagSet) parse(args []string) (assignments []assignment, problems []Problem) {
	for len(args) > 0 {
		arg := args[0]
		args = args[1:]
		// --name=text, and a name alone.
		name, text, hasText := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || name == "" {
			problems = append(problems, Problem{Value: arg, Message: "unexpected argument"})
			continue
		}
		flag, known := f.byName[name]
		// One dash is for the one-letter flag alone, as in Dynamo.
		if !known || strings.HasPrefix(arg, "--") == (len(name) == 1) {
			problems = append(problems, f.unknown(arg, name))
			if !hasText && len(args) > 0 && !strings.HasPrefix(args[0], "-") {
				args = args[1:] // most likely the unknown flag's value: one complaint is enough
			}
			continue
		}
		// The name as it was written, alias or not, so that messages speak the user's language.
		source := Source{Kind: "flag", Name: "--" + name}
		switch {
		case flag.setting.Switch(): // --x, --x=true, --no-x; a word after it is not its value
			if hasText && flag.negated {
				problems = append(problems, Problem{Key: "--" + name, Message: "takes no value"})
				continue
			}
			if !hasText {
				text = "true"
			}
			if flag.negated {
				text = "false"
			}
		case !hasText && (len(args) == 0 || f.isFlag(args[0])):
			problems = append(problems, Problem{Key: "--" + name, Message: "needs a value: " + flag.setting.Allowed()})
			continue
		case !hasText:
			text = args[0]
			args = args[1:]
		}
		assignments = append(assignments, assignment{flag.setting, text, source})
	}
	return assignments, problems
}

// isFlag tells a flag from a value that begins with a dash. A negative number or a path that begins with a dash is a
// value; only a flag that exists is a flag.
func (f *flagSet) isFlag(arg string) bool {
	name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
	_, known := f.byName[name]
	return known && strings.HasPrefix(arg, "--")
}

// unknown is the complaint about a flag that doesn't exist, with the nearest that does.
func (f *flagSet) unknown(arg, name string) Problem {
	flag, _, _ := strings.Cut(arg, "=")
	p := Problem{Key: flag, Message: "unknown flag"}
	names := make([]string, 0, len(f.byName))
	for n := range f.byName {
		if len(n) > 1 && len(name) > 1 {
			names = append(names, n)
		}
	}
	if near := nearest(name, names); near != "" {
		p.Message += "; did you mean --" + near + "?"
	}
	return p
}

// nearest returns the word that is the fewest edits away, or nothing when none is close. A third of the letters may
// differ, but at least two: enough for slips of the finger.
func nearest(word string, words []string) string {
	// Of equally near words the first in the alphabet is suggested, every time.
	slices.Sort(words)
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, candidate := range words {
		if d := editDistance(word, candidate); d < bestDistance {
			best, bestDistance = candidate, d
		}
	}
	return best
}

// editDistance counts the letters to insert, delete or replace. It is Levenshtein's distance over bytes: names are
// ASCII.
func editDistance(a, b string) int {
	// One row of the usual table is enough: entry j is the distance of the part of a seen so far to b[:j].
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
