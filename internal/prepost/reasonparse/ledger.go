package reasonparse

// ledger counts the tokens of thoughts. Tokens arrive with the text they make, the text is decided later and in other
// portions; the ledger matches the two byte by byte. A piece that is partly reasoning counts for that part, rounded
// to whole tokens; tokens without text go with the text after them.
type ledger struct {
	waiting   []portion
	textless  int // tokens since the last text
	reasoning int
}

// portion is a piece of text whose bytes aren't all decided.
type portion struct {
	bytes, left int
	reasoning   int // bytes
	tokens      int
}

// arrive notes that text of so many bytes has come, made by so many tokens.
func (l *ledger) arrive(bytes, tokens int) {
	if bytes == 0 {
		l.textless += tokens
		return
	}
	l.waiting = append(l.waiting, portion{bytes: bytes, left: bytes, tokens: tokens + l.textless})
	l.textless = 0
}

// settle counts tokens whose text is decided the moment it comes, nothing else being undecided.
func (l *ledger) settle(tokens int, reasoning bool) {
	if reasoning {
		l.reasoning += tokens + l.textless
	}
	l.textless = 0
}

// decide notes that the next bytes are reasoning, or aren't.
func (l *ledger) decide(bytes int, reasoning bool) {
	done := 0
	for done < len(l.waiting) && bytes > 0 {
		w := &l.waiting[done]
		n := min(bytes, w.left)
		bytes -= n
		w.left -= n
		if reasoning {
			w.reasoning += n
		}
		if w.left > 0 {
			break
		}
		l.reasoning += (w.tokens*w.reasoning + w.bytes/2) / w.bytes
		done++
	}
	if done > 0 {
		l.waiting = l.waiting[:copy(l.waiting, l.waiting[done:])]
	}
}
