package validate

import (
	"errors"
	"regexp/syntax"
	"slices"
	"strings"
	"unicode"
)

// Bounds of the look at an expression. It is taken while a request waits, so it must stay far below a millisecond for
// what people write, and below some milliseconds for anything.
const (
	maxPositions = 4000    // characters and classes, once counted repetitions are written out
	maxEdges     = 250_000 // between them
	maxSteps     = 400_000 // edges looked at in the search for ambiguity
)

// regexHopeless says, in words that follow the name of a field, why no engine should be asked to follow an expression:
// its brackets don't match, its counted repetitions multiply to too many, or a loop can read the same text in several
// ways, so that a matcher that backtracks needs exponential time ("catastrophic backtracking"). It is "" when nothing of
// the kind is found. What this dialect (RE2's) can't read is judged by regexBeyond or by the worker.
func regexHopeless(pattern string) string {
	// A broken expression has been seen to take a whole engine down with all its requests.
	if pattern == "" || !regexBalanced(pattern) {
		return "must be a regular expression with all brackets closed"
	}
	tree, err := syntax.Parse(spellOut(pattern), syntax.Perl)
	if err != nil {
		var bad *syntax.Error
		if errors.As(err, &bad) && slices.Contains(tooMuch[:], bad.Code) {
			return "must be a regular expression whose nested repetitions multiply to at most 1000"
		}
		return ""
	}
	g := &positions{}
	g.add(tree.Simplify())
	switch {
	case g.full():
		return "must be a smaller regular expression: written out, it has more than 4000 characters, or too many of them " +
			"may follow each other"
	case g.ambiguousLoop():
		return "must be a regular expression whose loops plainly read a text in one way only: one like (a+)+ or (a|a)* " +
			"takes exponential time to fail"
	}
	return ""
}

// regexBalanced reports whether the brackets and parentheses of a regular expression are closed. Dialects differ in
// all else; this much holds in each, and an engine may not survive less.
func regexBalanced(pattern string) bool {
	// Inside a character class only its end and escapes count.
	open, class := 0, false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		// An escape covers the next byte; a lone one at the end covers nothing.
		case c == '\\':
			if i++; i == len(pattern) {
				return false
			}
		// Parentheses mean nothing in here.
		case class:
			class = c != ']'
		case c == '[':
			class = true
			i += classBegin(pattern[i:]) - 1
		case c == '(':
			open++
		// One that closes nothing is wrong at once, whatever follows.
		case c == ')':
			if open--; open < 0 {
				return false
			}
		}
	}
	return open == 0 && !class
}

// regexBeyond says what an expression has that no engine can hold an answer to: they walk automata, which remember no text
// and don't look back. xgrammar, llguidance, outlines and lm-format-enforcer refuse all of it. Looking ahead is for the
// worker to judge: the last of them can.
func regexBeyond(pattern string) string {
	class := false
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		begins := func(prefixes ...string) bool {
			return slices.ContainsFunc(prefixes, func(s string) bool { return strings.HasPrefix(rest, s) })
		}
		switch {
		case rest[0] == '\\' && len(rest) > 1:
			if !class && (rest[1] >= '1' && rest[1] <= '9' || begins(`\k<`, `\k{`, `\k'`, `\g{`)) {
				return "references to what a group has matched"
			}
			i++ // stands for itself
		case class:
			class = rest[0] != ']'
		case rest[0] == '[':
			class = true
			i += classBegin(rest) - 1
		case begins("(?P=", "(?("):
			return "references to what a group has matched"
		case begins("(?<=", "(?<!"):
			return "assertions about what stands in front (look-behind)"
		}
	}
	return ""
}

// tooMuch are the parser's errors about size.
var tooMuch = [...]syntax.ErrorCode{syntax.ErrInvalidRepeatSize, syntax.ErrLarge, syntax.ErrNestingDepth}

// spellOut writes an expression so that the parser keeps what matters here. It would take (?:a+)+ for a+ and a|a for a,
// so groups capture and alternatives begin with an empty group; and it refuses counts above 1000 even where nothing
// multiplies them, so these become 1000.
func spellOut(pattern string) string {
	out := make([]byte, 0, len(pattern)+16)
	class := false
	for i := 0; i < len(pattern); i++ {
		rest := pattern[i:]
		switch c := pattern[i]; {
		case c == '\\' && len(rest) > 1: // stands for itself
			out = append(out, c, rest[1])
			i++
		case class:
			class = c != ']'
			out = append(out, c)
		case c == '[':
			begin := rest[:classBegin(rest)]
			class = true
			out = append(out, begin...)
			i += len(begin) - 1
		case strings.HasPrefix(rest, "(?:"):
			out = append(out, '(')
			i += 2
		case c == '|':
			out = append(out, "|()"...)
		case (c == '{' || c == ',') && largeCount(rest[1:]) > 0:
			out = append(append(out, c), "1000"...)
			i += largeCount(rest[1:])
		default:
			out = append(out, c)
		}
	}
	return string(out)
}

// classBegin is the length of what opens a character class: the bracket, a negation, and a bracket that stands for itself.
func classBegin(class string) int {
	n := 1
	if n < len(class) && class[n] == '^' {
		n++
	}
	if n < len(class) && class[n] == ']' {
		n++
	}
	return n
}

// largeCount is the length of a count of four digits or more that text begins with, or 0.
func largeCount(text string) int {
	n := 0
	for n < len(text) && '0' <= text[n] && text[n] <= '9' {
		n++
	}
	if n < 4 || n == len(text) || text[n] != '}' && text[n] != ',' {
		return 0
	}
	return n
}

// positions is the position automaton of an expression (Glushkov, "The abstract theory of automata", 1961): a state for
// each character or class in it, and an edge from each to those that may come next.
type positions struct {
	class  [][]rune // per position, the ranges it matches, as pairs
	follow [][]int  // per position, those that may come next
	within []int    // per position, the number of the outermost loop it stands in; 0: none
	depth  int      // loops around what is being added
	loops  int      // outermost loops so far
	edges  int      // in follow
	twice  bool     // an edge of a loop came about in two ways: a loop within a loop
}

// full reports whether the automaton has grown beyond its bounds; it isn't complete then.
func (g *positions) full() bool { return len(g.class) > maxPositions || g.edges > maxEdges }

// part is what an expression looks like from outside.
type part struct {
	first, last []int
	empty       bool // may match nothing
}

// add adds the positions of an expression. When the automaton is full it adds no more.
func (g *positions) add(re *syntax.Regexp) part {
	if g.full() {
		return part{empty: true}
	}
	switch re.Op {
	case syntax.OpLiteral:
		whole := part{empty: true}
		for _, r := range re.Rune {
			whole = g.then(whole, g.position(literal(r, re.Flags)))
		}
		return whole
	case syntax.OpCharClass:
		return g.position(re.Rune)
	case syntax.OpAnyChar, syntax.OpAnyCharNotNL:
		return g.position([]rune{0, unicode.MaxRune})
	case syntax.OpCapture:
		return g.add(re.Sub[0])
	case syntax.OpQuest:
		p := g.add(re.Sub[0])
		p.empty = true
		return p
	case syntax.OpStar, syntax.OpPlus:
		if g.depth++; g.depth == 1 {
			g.loops++
		}
		p := g.add(re.Sub[0])
		g.depth--
		g.loop(p)
		p.empty = p.empty || re.Op == syntax.OpStar
		return p
	case syntax.OpConcat:
		whole := part{empty: true}
		for _, sub := range re.Sub {
			whole = g.then(whole, g.add(sub))
		}
		return whole
	case syntax.OpAlternate:
		var whole part
		for _, sub := range re.Sub {
			p := g.add(sub)
			whole = part{append(whole.first, p.first...), append(whole.last, p.last...), whole.empty || p.empty}
		}
		return whole
	}
	return part{empty: true} // what matches a place, and the expression that matches nothing
}

// literal is the class of one character of a literal.
func literal(r rune, flags syntax.Flags) []rune {
	class := []rune{r, r}
	if flags&syntax.FoldCase != 0 {
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			class = append(class, f, f)
		}
	}
	return class
}

func (g *positions) position(class []rune) part {
	g.class = append(g.class, class)
	g.follow = append(g.follow, nil)
	loop := 0
	if g.depth > 0 {
		loop = g.loops
	}
	g.within = append(g.within, loop)
	p := []int{len(g.class) - 1}
	return part{first: p, last: p}
}

// then joins two parts, one behind the other.
func (g *positions) then(a, b part) part {
	g.edges += len(a.last) * len(b.first)
	for _, p := range a.last {
		if g.full() {
			break
		}
		g.follow[p] = append(g.follow[p], b.first...)
	}
	whole := part{first: a.first, last: b.last, empty: a.empty && b.empty}
	if a.empty {
		whole.first = slices.Concat(a.first, b.first)
	}
	if b.empty {
		whole.last = slices.Concat(a.last, b.last)
	}
	return whole
}

// loop lets a part follow itself.
func (g *positions) loop(p part) {
	g.edges += len(p.last) * len(p.first)
	if g.full() {
		return
	}
	first := make([]bool, len(g.class))
	for _, to := range p.first {
		first[to] = true
	}
	for _, from := range p.last {
		// An edge is there when a loop inside begins and ends where this one does: two ways to read on.
		if slices.ContainsFunc(g.follow[from], func(to int) bool { return first[to] }) {
			g.twice = true
			return
		}
		g.follow[from] = append(g.follow[from], p.first...)
	}
}

// ambiguousLoop reports whether some state comes back to itself by two ways that read the same text: that is what makes
// the number of ways to read a text exponential (Weber and Seidl, "On the degree of ambiguity of finite automata", 1991).
// A search that takes too long counts as found.
func (g *positions) ambiguousLoop() bool {
	if g.twice {
		return true
	}
	steps := 0
	for state, loop := range g.within {
		// Without a loop nothing comes back; without two edges no way parts from another.
		if loop > 0 && len(g.follow[state]) > 1 && g.meetsAgain(state, &steps) {
			return true
		}
	}
	return false
}

// meetsAgain reports whether two ways part at a state and come back to it together, by the same text. It walks the pairs
// of states that one text leads to.
func (g *positions) meetsAgain(state int, steps *int) bool {
	type pair struct{ a, b int }
	seen := map[pair]bool{}
	next := []pair{{state, state}}
	parting := true // the first step goes to two states, later ones may meet
	for len(next) > 0 {
		at := next[len(next)-1]
		next = next[:len(next)-1]
		for _, a := range g.follow[at.a] {
			for _, b := range g.follow[at.b] {
				if *steps++; *steps > maxSteps {
					return true
				}
				p := pair{min(a, b), max(a, b)} // the same either way round
				switch {
				case parting && a == b || seen[p] || g.within[a] != g.within[state] || g.within[b] != g.within[state]:
				case !meet(g.class[a], g.class[b]):
				case a == state && b == state:
					return true
				default:
					seen[p] = true
					next = append(next, p)
				}
			}
		}
		parting = false
	}
	return false
}

// meet reports whether two classes have a character in common.
func meet(a, b []rune) bool {
	for i := 0; i < len(a); i += 2 {
		for j := 0; j < len(b); j += 2 {
			if a[i] <= b[j+1] && b[j] <= a[i+1] {
				return true
			}
		}
	}
	return false
}
