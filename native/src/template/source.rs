//! What is done to a template's source before it is compiled.

/// Rewrites what the engine would read differently from Jinja2:
/// - line ends become `\n`, as Jinja2's lexer makes them;
/// - `{% generation %}` … `{% endgeneration %}`, which mark the assistant's own text for training, become a `with`
///   block: they print nothing and what is set inside stays inside;
/// - the line end after `{% raw %}` is kept.
///
/// Comments, raw blocks and string literals are left as they are.
pub fn prepare(src: &str) -> String {
    let src = src.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(src.len());
    let mut rest = src.as_str();
    while let Some(at) = rest.find('{') {
        let (text, from) = rest.split_at(at);
        out.push_str(text);
        let len = match from.as_bytes().get(1) {
            Some(b'#') => from.find("#}").map_or(from.len(), |n| n + 2),
            Some(b'{') => tag_len(from, "}}"),
            Some(b'%') => tag_len(from, "%}"),
            _ => 1,
        };
        let (tag, after) = from.split_at(len);
        rest = after;
        match block_name(tag) {
            Some("generation") => out.push_str(&tag.replacen("generation", "with", 1)),
            Some("endgeneration") => out.push_str(&tag.replacen("endgeneration", "endwith", 1)),
            Some("raw") => {
                let raw = raw_len(after);
                out.push_str(tag);
                // Jinja2 trims the line end after every block tag but this one.
                if after.starts_with('\n') && !tag.ends_with("-%}") {
                    out.push('\n');
                }
                out.push_str(&after[..raw]);
                rest = &after[raw..];
            }
            _ => out.push_str(tag),
        }
    }
    out.push_str(rest);
    out
}

/// Length of the tag at the start of `src`, up to and with `end`; `end` inside a string literal doesn't count.
fn tag_len(src: &str, end: &str) -> usize {
    let bytes = src.as_bytes();
    let mut at = 2;
    let mut quote = None;
    while at < bytes.len() {
        let c = bytes[at];
        match quote {
            Some(_) if c == b'\\' => at += 1,
            Some(q) if c == q => quote = None,
            Some(_) => {}
            None if c == b'\'' || c == b'"' => quote = Some(c),
            None if bytes[at..].starts_with(end.as_bytes()) => return at + end.len(),
            None => {}
        }
        at += 1;
    }
    src.len()
}

/// The word that names a block tag, when the tag is nothing but that word.
fn block_name(tag: &str) -> Option<&str> {
    let inner = tag.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    Some(inner.strip_suffix(['-', '+']).unwrap_or(inner).trim())
}

/// Length of what follows a `raw` tag, up to its `endraw` tag.
fn raw_len(src: &str) -> usize {
    let mut at = 0;
    while let Some(n) = src[at..].find("{%") {
        at += n;
        let len = src[at..].find("%}").map_or(src.len() - at, |n| n + 2);
        if block_name(&src[at..at + len]) == Some("endraw") {
            return at;
        }
        at += 2;
    }
    src.len()
}
