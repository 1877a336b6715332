//! The JSON Schema of one line, generated from the types: `docs/slicetrace-1.schema.json`.

use schemars::generate::SchemaSettings;
use serde_json::{Value, json};

use crate::model::timeline::{Line, SCHEMA};

/// The schema (JSON Schema 2020-12) of one line of `--output json`. Kinds and fields that it does not know are allowed,
/// as readers must ignore them; a known field of a wrong type is not.
pub fn line() -> Value {
    let generator = SchemaSettings::draft2020_12().into_generator();
    let mut schema = generator.into_root_schema_for::<Line>().to_value();
    let known: Vec<Value> = schema["oneOf"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|kind| kind["properties"]["kind"]["const"].clone())
        .collect();
    if let Some(object) = schema.as_object_mut() {
        object.insert(
            "$id".to_owned(),
            json!("https://slicetrace.github.io/slicetrace-1.schema.json"),
        );
        object.insert("title".to_owned(), json!(format!("One line of {SCHEMA}")));
        if let Some(kinds) = object.get_mut("oneOf").and_then(Value::as_array_mut) {
            kinds.push(json!({
                "description": "A kind of a later version: to be ignored.",
                "type": "object",
                "properties": { "kind": { "type": "string", "not": { "enum": known } } },
                "required": ["kind"]
            }));
        }
    }
    schema
}

/// The schema as it is checked in.
///
/// # Errors
/// Never in practice: it is plain JSON.
pub fn text() -> Result<String, serde_json::Error> {
    serde_json::to_string_pretty(&line()).map(|text| text + "\n")
}
