//! What the fast encoder doesn't cover it refuses, and says why.
mod common;

use common::*;
use portico_native::fast::Tokenizer;
use serde_json::{json, Value};

#[test]
fn refusals_have_reasons() {
    let byte_level = |field: &str, value: Value| {
        let mut p = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        p[field] = value;
        p
    };
    let token = |field: &str, value: Value| {
        let mut t = json!({"id": 49152, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true});
        t[field] = value;
        json!([t])
    };
    let template = |single: Value| json!({"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {}});
    for (path, value, reason) in [
        ("/model/type", json!("Unigram"), "model Unigram"),
        ("/model/dropout", json!(0.1), "dropout"),
        ("/model/continuing_subword_prefix", json!("##"), "continuing_subword_prefix"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/model/merges", json!(["a b c"]), "merge"),
        ("/model/merges", json!([["zzzzqq", "b"]]), "not in the vocabulary"),
        ("/model/vocab", json!({"a": 1 << 20}), "too large"),
        ("/truncation", json!({"max_length": 3}), "truncation"),
        ("/padding", json!({}), "padding"),
        ("/normalizer", json!({"type": "NFKC"}), "NFKC"),
        ("/normalizer", json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]}), "Lowercase"),
        ("/pre_tokenizer", Value::Null, "pre-tokenizer null"),
        ("/pre_tokenizer", byte_level("add_prefix_space", json!(true)), "add_prefix_space"),
        ("/pre_tokenizer", splits("Isolated", false, &[r"\w+"]), r"\\w+"),
        ("/pre_tokenizer", splits("MergedWithNext", false, &[r"\p{N}"]), "MergedWithNext"),
        ("/pre_tokenizer", byte_level("type", json!("Metaspace")), "Metaspace"),
        ("/post_processor", json!({"type": "BertProcessing"}), "BertProcessing"),
        ("/post_processor", template(json!([{"SpecialToken": {"id": "x", "type_id": 0}}])), "post-processor"),
        ("/added_tokens", token("lstrip", json!(true)), "lstrip"),
        ("/added_tokens", token("rstrip", json!(true)), "rstrip"),
        ("/added_tokens", token("single_word", json!(true)), "single_word"),
        ("/added_tokens", token("id", json!(50000)), "would be 49152"),
        ("/added_tokens", token("content", json!("")), "empty"),
    ] {
        let mut json = small();
        for field in ["/truncation", "/padding", "/normalizer", "/post_processor"] {
            json[&field[1..]] = json.pointer(field).cloned().unwrap_or_default();
        }
        for field in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
            json["model"][field] = json["model"][field].clone();
        }
        *json.pointer_mut(path).expect(path) = value;
        match Tokenizer::from_json(json.to_string().as_bytes()) {
            Ok(_) => panic!("{path}: accepted, want {reason:?}"),
            Err(got) => assert!(got.contains(reason), "{path}: {got:?}, want {reason:?}"),
        }
    }
}

#[test]
fn unknown_tokens_are_fine_where_they_cannot_occur() {
    let mut json = small();
    json["model"]["unk_token"] = json!("<|endoftext|>");
    json["model"]["byte_fallback"] = json!(true);
    // This vocabulary lacks bytes that UTF-8 doesn't use.
    let partial = Tokenizer::from_json(json.to_string().as_bytes());
    let reason = partial.err().expect("bytes without a token");
    assert!(reason.contains("unknown token"), "{reason}");

    let vocab = json["model"]["vocab"].as_object_mut().unwrap();
    for c in (0x21..0x7f).chain(0xa1..0xad).chain(0xae..0x144).filter_map(char::from_u32) {
        let next = vocab.len();
        vocab.entry(c.to_string()).or_insert(json!(next));
    }
    assert_eq!(Tokenizer::from_json(json.to_string().as_bytes()).err(), None);
}

#[test]
fn broken_json_is_refused() {
    for text in ["", "{", "[]", "{\"model\": 3}", "{\"model\": {\"type\": \"BPE\"}}"] {
        assert!(Tokenizer::from_json(text.as_bytes()).is_err(), "{text}");
    }
}
