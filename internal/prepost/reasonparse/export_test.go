package reasonparse

// CallMarks gives tests the literals around calls: what begins one, and what ends it (perhaps nothing).
func CallMarks(toolParser string) [][2]string {
	var pairs [][2]string
	for _, m := range callMarks(toolParser) {
		pairs = append(pairs, [2]string{m.text, m.end})
	}
	return pairs
}

// Delimiters gives tests the markers of a dialect that may never show.
func Delimiters(name string) (open, close []string) {
	d := lookup(name)
	return d.open, d.close
}

// Literals gives tests everything that means something to a parser with these names.
func Literals(name, toolParser string) []string {
	return append(Scanned(name, toolParser), lookup(name).open...)
}

// Scanned gives tests everything that a parser with these names looks for.
func Scanned(name, toolParser string) []string {
	all := Markers(name)
	if lookup(name).channels != nil {
		return all
	}
	for _, m := range callMarks(toolParser) {
		all = append(all, m.text)
	}
	return all
}
